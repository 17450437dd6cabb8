package main

import (
	"flag"
	"fmt"
	"strings"
)

// manual is what help says in all, behind the list of commands.
const manual = `
Redis: REDIS_URL or -redis, which shows in ps. Without either it is ` + defaultURL + `.
  host:port                                     a single server, or
  redis://user:password@host:port/db            the same; rediss:// for TLS, here and below
  unix://user:password@/path?db=1               a socket
  redis+sentinel://user:password@host,host/master/db
                                                the master that Sentinel names; Sentinel's own user goes into
                                                ?sentinel_username= and &sentinel_password=
  redis+cluster://user:password@host,host       a Cluster, known by some of its nodes
  URL,URL,URL                                   independent masters, or -redis more than once
In a user or a password, write / # ? @ % as %2F %23 %3F %40 %25.

Exit status: that of the command for run, and otherwise
  0    all went well; also after Ctrl-C in watch
  1    release: nobody said yes
  3    show, release: nothing is known of the key, or nobody holds it
  64   the command line is wrong
  69   Redis, or a part of it, cannot be asked; what is known is printed
  70   run: the lock was lost, or its lease ran out: the command was ended, or has run on without the lock
  75   run: another holder has the lock; release: another one by now
  126  run: the command cannot be executed
  127  run: there is no such command
  130  a signal ended the wait for a lock: 128 and its number
`

// pages are what help says of each command.
var pages = map[string]string{
	"run": `Takes the lock, runs the command, and releases the lock when the command and its process group have ended. Without -try or -wait
it waits in line for as long as it takes.

The command has the tool's standard input, output and error, and in its environment HOLDFAST_KEY and HOLDFAST_TOKEN, the fencing
token: pass it on to what the command writes to, and have that refuse a smaller one than it has seen. It gets the signals HUP, INT,
QUIT, TERM, USR1 and USR2 that the tool gets. It runs in a process group of its own, and so has /dev/null for a terminal on
standard input. When it ends, what it leaves in its group is killed.

If the lease runs out, because Redis is out of reach or because the tool is stopped, the group gets SIGTERM, and after -grace SIGKILL,
before the lease has ended. If the lock is lost, as by release or by a Redis that forgot it, the group gets SIGKILL at once. A guardian,
a second process of the tool, does that for a tool that is stopped or killed, and the tool for a guardian that is. What remains:
  - both are stopped, or the whole machine, container or virtual machine is. Then the command is too, or may go on. When all continue,
    tool and guardian look at the clock first, but the command can run for the moment until it is killed.
  - a process of the command that has left the group, as a daemon does, or that is stuck in the kernel.
  - what the command has sent before it was killed can arrive later.
The fencing token is for these.

With -lead, every replica runs the same line, and one of them runs the command at a time. If the command fails, a replica, perhaps
another, runs it again after a pause; if the lock is lost, another runs it at once. The line ends when the command has succeeded, or
after a signal.`,
	"ls": `Lists the locks whose key matches a Redis pattern: * ? [a-z]. It looks for what holdfast keeps beside a lock, for a TTL and a minute
after an acquisition. -all finds the others, by reading the beginning of every string key. It costs Redis a SCAN over all keys.`,
	"show":  `Shows the holder or holders of a lock, the fencing tokens, how earlier holds ended, and the waiters in their order.`,
	"watch": `Shows the table of ls again and again, as wide as the terminal. With -json it prints a line for each look.`,
	"release": `Shows the holder of a lock, asks, and takes the lock from that holder. If another has it by then, nothing is changed. The next waiter
gets the lock at once, with a larger fencing token. The old holder notices at its next renewal, a third of its lease later at most, and
works on until then: stop it first if you can. Of several holders, -token says which.`,
}

// help prints the page of a command, or an overview.
func (a *app) help(args []string) error {
	if len(args) == 0 {
		fmt.Fprint(a.stdout, usage()+manual)
		return nil
	}
	for _, v := range verbs {
		if v.name == args[0] {
			fmt.Fprintf(a.stdout, "holdfast %s [flags] %s\n\n%s\n\nFlags:\n", v.name, v.args, pages[v.name])
			flags := v.flagSet(&settings{})
			flags.SetOutput(a.stdout)
			flags.PrintDefaults()
			return nil
		}
	}
	return &exit{statusUsage, "no command " + printable(args[0])}
}

// bashCompletion has a line for each command in its case. In zsh, bashcompinit runs it.
const bashCompletion = `_holdfast() {
	local cur=${COMP_WORDS[COMP_CWORD]} i
	COMPREPLY=()
	if ((COMP_CWORD == 1)); then
		COMPREPLY=($(compgen -W "%s help completion" -- "$cur"))
		return
	fi
	for ((i = 2; i < COMP_CWORD; i++)); do
		if [[ ${COMP_WORDS[1]} == run && ${COMP_WORDS[i]} == -- ]]; then
			((COMP_CWORD == i + 1)) && COMPREPLY=($(compgen -c -- "$cur")) || COMPREPLY=($(compgen -f -- "$cur"))
			return
		fi
	done
	case ${COMP_WORDS[1]} in
%s	help) COMPREPLY=($(compgen -W "%[1]s" -- "$cur")) ;;
	completion) COMPREPLY=($(compgen -W "bash zsh fish" -- "$cur")) ;;
	esac
}
complete -F _holdfast holdfast
`

// completion prints a script for a shell.
func (a *app) completion(args []string) error {
	var names []string
	var cases, fish strings.Builder
	fish.WriteString("complete -c holdfast -f -n __fish_use_subcommand -a 'help completion'\ncomplete -c holdfast -f -n '__fish_seen_subcommand_from completion' -a 'bash zsh fish'\n")
	for _, v := range verbs {
		names = append(names, v.name)
		fmt.Fprintf(&fish, "complete -c holdfast -f -n __fish_use_subcommand -a %s -d '%s'\n", v.name, v.what)
		var flags []string
		v.flagSet(&settings{}).VisitAll(func(f *flag.Flag) {
			flags = append(flags, "-"+f.Name)
			_, what := flag.UnquoteUsage(f)
			fmt.Fprintf(&fish, "complete -c holdfast -n '__fish_seen_subcommand_from %s' -o %s -d '%s'\n", v.name, f.Name, strings.ReplaceAll(what, "'", `\'`))
		})
		fmt.Fprintf(&cases, "\t%s) COMPREPLY=($(compgen -W \"%s\" -- \"$cur\")) ;;\n", v.name, strings.Join(flags, " "))
	}
	bash := fmt.Sprintf(bashCompletion, strings.Join(names, " "), cases.String())
	scripts := map[string]string{"bash": bash, "zsh": "autoload -U +X bashcompinit && bashcompinit\n" + bash, "fish": fish.String()}
	if len(args) != 1 || scripts[args[0]] == "" {
		return &exit{statusUsage, "completion needs one of bash, zsh and fish"}
	}
	fmt.Fprint(a.stdout, scripts[args[0]])
	return nil
}

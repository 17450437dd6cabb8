//go:build holdfast_trace

package protocol

import (
	_ "embed"
	"strings"
)

// In a build with the tag holdfast_trace, the scripts of one server write what they did to a list, see trace.lua. Nobody
// should deploy such a build: it is for the checks of internal/model/trace.
const tracing = true

//go:embed trace.lua
var traceLua string

// traced returns a script that also writes an event, with that name of the call.
func traced(name, script string) string {
	return strings.NewReplacer("<name>", name, "<script>", script).Replace(traceLua)
}

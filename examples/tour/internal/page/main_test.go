package page

import (
	"flag"
	"os"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/holdfast-go/holdfast/examples/tour/internal/shop"
)

// TestMain lets the test binary be a replica, as the program is.
func TestMain(m *testing.M) {
	if os.Getenv(shop.ProcessEnv) != "" {
		os.Exit(shop.Child(map[string]shop.Play{Play: Replica}))
	}
	gin.SetMode(gin.ReleaseMode)
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f.Value.String() == f.DefValue {
		_ = flag.Set("test.parallel", "6") // those that are parallel mostly wait
	}
	os.Exit(m.Run())
}

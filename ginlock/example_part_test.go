package ginlock_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/gin-gonic/gin"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/ginlock"
)

// key answers with the key that the request runs under.
func key(c *gin.Context) { c.String(http.StatusOK, holdfast.Held(c.Request.Context())[0].Key()) }

func ExampleParam() {
	locker, closeAll := newExampleLocker()
	defer closeAll()

	router := gin.New()
	router.POST("/orders/:id/pay", ginlock.New(locker, "order", ginlock.Param("id")), key)
	fmt.Println(post(router, "/orders/42/pay"))
	// Output: 200 order:42
}

// Two values together name the lock.
func ExampleParts() {
	locker, closeAll := newExampleLocker()
	defer closeAll()

	router := gin.New()
	part := ginlock.Parts(ginlock.Param("tenant"), ginlock.Param("id"))
	router.POST("/:tenant/orders/:id", ginlock.New(locker, "order", part), key)
	fmt.Println(post(router, "/acme/orders/42"))
	// Output: 200 order:acme:42
}

func ExampleQuery() {
	locker, closeAll := newExampleLocker()
	defer closeAll()

	router := gin.New()
	router.POST("/export", ginlock.New(locker, "export", ginlock.Query("year")), key)
	fmt.Println(post(router, "/export?year=2026"))
	fmt.Println(post(router, "/export"))
	// Output:
	// 200 export:2026
	// 400 Bad Request
}

func ExampleHeader() {
	locker, closeAll := newExampleLocker()
	defer closeAll()

	router := gin.New()
	router.POST("/events", ginlock.New(locker, "device", ginlock.Header("Device-Id")), key)
	fmt.Println(post(router, "/events", "Device-Id", "meter 7"))
	// Output: 200 device:meter%207
}

// The handler can still read the body.
func ExampleJSON() {
	locker, closeAll := newExampleLocker()
	defer closeAll()

	router := gin.New()
	router.POST("/payouts", ginlock.New(locker, "account", ginlock.JSON("account_id")), func(c *gin.Context) {
		var payout struct{ Amount int }
		if err := c.BindJSON(&payout); err != nil {
			return
		}
		c.String(http.StatusOK, "%s gets %d", holdfast.Held(c.Request.Context())[0].Key(), payout.Amount)
	})
	for _, body := range []string{`{"account_id": 42, "amount": 100}`, `{"amount": 100}`} {
		w := send(router, httptest.NewRequest(http.MethodPost, "/payouts", strings.NewReader(body)))
		fmt.Println(w.Code, w.Body)
	}
	// Output:
	// 200 account:42 gets 100
	// 400 {"title":"Bad Request","status":400,"detail":"The request has no field \"account_id\" in its body."}
}

// An earlier middleware, such as authentication, sets the value that names the lock.
func ExampleValue() {
	locker, closeAll := newExampleLocker()
	defer closeAll()

	router := gin.New()
	router.Use(func(c *gin.Context) { c.Set("user", 7) })
	router.POST("/basket", ginlock.New(locker, "basket", ginlock.Value("user")), key)
	fmt.Println(post(router, "/basket"))
	// Output: 200 basket:7
}

// Any function of this type will do. This one gives the order numbers 42 and 0042 the same lock.
func ExamplePart() {
	locker, closeAll := newExampleLocker()
	defer closeAll()

	number := func(c *gin.Context) ([]string, error) {
		id := strings.TrimLeft(c.Param("id"), "0")
		if id == "" {
			return nil, fmt.Errorf("%w: no order has the number 0", holdfast.ErrInvalid) // a 400
		}
		return []string{id}, nil
	}
	router := gin.New()
	router.POST("/orders/:id", ginlock.New(locker, "order", number), key)
	fmt.Println(post(router, "/orders/0042"))
	fmt.Println(post(router, "/orders/0"))
	// Output:
	// 200 order:42
	// 400 Bad Request
}

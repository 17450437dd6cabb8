package main

import (
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/gin-gonic/gin"
	_ "github.com/holdfast-go/holdfast/internal/servertest/testlimit"
)

func TestEveryUnitIsSoldOnceUnderTheLock(t *testing.T) {
	gin.SetMode(gin.ReleaseMode)
	addr := miniredis.RunT(t).Addr()
	if sold, left, twice := rush("without the lock", addr, false); twice == 0 {
		t.Errorf("without the lock: %d sold, %d left, none twice: the rush shows nothing", sold, left)
	}
	if sold, left, twice := rush("with the lock", addr, true); sold != products*stock || left != 0 || twice != 0 {
		t.Errorf("with the lock: %d sold, %d left, %d twice, want %d, 0, 0", sold, left, twice, products*stock)
	}
}

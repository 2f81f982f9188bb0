#include "textflag.h"

// func LoadFence()
TEXT ·LoadFence(SB), NOSPLIT|NOFRAME, $0-0
	DMB	$0x9 // ISHLD: loads before, loads and stores after
	RET

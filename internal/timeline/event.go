package timeline

import "encoding/json"

// event is one element of traceEvents.
type event struct {
	Ph   string  `json:"ph"`
	PID  int     `json:"pid"`
	TID  int     `json:"tid"`
	TS   float64 `json:"ts"`
	Dur  float64 `json:"dur"`
	Name string  `json:"name"`
	Args args    `json:"args"`
}

type args struct {
	Name    string `json:"name"`
	Epoch   int32  `json:"epoch"`
	Batch   int32  `json:"batch"`
	Index   int64  `json:"index"`
	Samples int32  `json:"samples"`
	Hits    int32  `json:"hits"`
	Misses  int32  `json:"misses"`
	Bytes   int64  `json:"bytes"`
}

// absent marks a time that an event does not have.
const absent = -1 << 60

var nothing = event{TS: absent, Dur: absent,
	Args: args{Epoch: -1, Batch: -1, Index: -1, Samples: -1, Hits: -1, Misses: -1, Bytes: -1}}

// parseEvent reads an event.
func parseEvent(text []byte) (event, error) {
	e := nothing
	err := json.Unmarshal(text, &e)
	return e, err
}

package model

// Worlds are the configurations whose schedules are replayed on the real code. Two threads share a
// handle only for sets. The protocol does not say how a handle keeps its own threads from clearing
// or recovering at the same time.
func Worlds() []Config {
	return []Config{
		{Name: "fill", Samples: 1, Places: 1, Records: 3, Entries: 1, Crashes: 2,
			Clients: []Client{one(set(0, 1), get(0)), one(set(0, 2)), late(set(0, 3), get(0))}},
		{Name: "overwrite", Samples: 1, Places: 1, Records: 2, Entries: 1, Crashes: 2, Setup: ops(set(0, 1)),
			Clients: []Client{one(overwrite(0, 2), get(0)), one(overwrite(0, 3), set(0, 4)), reader(get(0), get(0))}},
		{Name: "slots", Samples: 2, Places: 2, Records: 2, Entries: 1, Crashes: 2,
			Clients: []Client{one(set(0, 1), get(1)), one(abort(1, 2), set(1, 3)), late(set(1, 4), set(0, 5))}},
		{Name: "one-slot", Samples: 2, Places: 1, Records: 3, Entries: 1, Crashes: 2,
			Clients: []Client{one(abort(0, 1), set(1, 2)), one(set(1, 3), get(0)), late(set(0, 4), get(1))}},
		{Name: "recover", Samples: 2, Places: 2, Records: 3, Entries: 1, Crashes: 3,
			Clients: []Client{one(set(0, 1)), one(recoverAll, set(0, 2)), late(recoverAll, set(1, 3))}},
		{Name: "threads", Samples: 2, Places: 2, Records: 2, Entries: 2, Crashes: 1,
			Clients: []Client{threads(ops(set(0, 1)), ops(set(0, 2), set(1, 3))), one(set(0, 4), set(1, 5))}},
		{Name: "clear", Samples: 2, Places: 2, Records: 3, Entries: 1, Crashes: 2, Setup: ops(set(0, 1), set(1, 2)),
			Clients: []Client{one(clearAll, set(0, 3)), one(overwrite(0, 4), set(1, 5)), late(set(1, 6), get(0))}},
		{Name: "clear-now", Samples: 2, Places: 1, Records: 3, Entries: 1, Crashes: 1, Setup: ops(set(0, 1)),
			Clients: []Client{one(Op{Kind: Clear, GiveUp: true}, set(1, 2)), one(overwrite(0, 3), clearAll)}},
		{Name: "clear-number", Samples: 1, Places: 1, Records: 2, Entries: 1, Crashes: 2, Setup: ops(set(0, 1)),
			Clients: []Client{one(clearAll, get(0)), one(set(0, 2), clearAll), late(set(0, 3), clearAll)}},
		{Name: "indices", Indices: true, Samples: 2, Places: 2, Records: 2, Entries: 1, Crashes: 2,
			Setup:   ops(set(1, 1)),
			Clients: []Client{one(set(0, 2), clearAll), one(overwrite(1, 3), abort(0, 4)), late(set(0, 5), get(1))}},
		{Name: "arena", Variable: true, Samples: 2, Places: 4, Records: 2, Entries: 1, Crashes: 2,
			Setup: ops(set(0, 1)),
			Clients: []Client{one(overwrite(0, 2).of(2), get(0)), one(set(1, 3), abort(1, 4)),
				late(set(0, 5).of(2), set(1, 6))}},
		{Name: "arena-full", Variable: true, Samples: 2, Places: 2, Records: 2, Entries: 1, Crashes: 2,
			Clients: []Client{one(set(0, 1)), one(set(1, 2).of(2), get(1)), late(set(1, 3))}},
		{Name: "arena-clear", Variable: true, Samples: 2, Places: 4, Records: 3, Entries: 1, Crashes: 2,
			Setup: ops(set(0, 1).of(2)),
			Clients: []Client{one(clearAll, set(0, 2)), one(abort(1, 3).of(2), set(1, 4)),
				late(set(0, 5).of(2), get(1))}},
		{Name: "arena-threads", Variable: true, Samples: 2, Places: 4, Records: 2, Entries: 2, Crashes: 1,
			Clients: []Client{threads(ops(set(0, 1)), ops(set(1, 2).of(2))), one(set(0, 3), set(1, 4))}},
	}
}

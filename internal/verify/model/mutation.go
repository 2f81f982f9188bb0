package model

// Mutation is one deliberate breakage of the protocol: a line or two of the steps.
type Mutation uint8

// AsDocumented is the protocol without a breakage.
const AsDocumented Mutation = 0

// keepsGeneration says that a mutation breaks the table of states by definition. Then only wrong
// bytes or slots show an error.
func (m Mutation) keepsGeneration() bool {
	return m == NoGenerationOnOverwrite || m == NoGenerationOnTakeback || m == NoGenerationOnClear
}

// Mutant is a mutation with its text and the expected result of the checker.
type Mutant struct {
	Mutation  Mutation
	Name      string
	Text      string
	In        string // the configuration that must find it; "": none can, and Redundant says why
	Redundant string
}

// Mutants lists every mutation.
var Mutants []Mutant

func listed(m Mutant) Mutation {
	m.Mutation = Mutation(len(Mutants) + 1)
	Mutants = append(Mutants, m)
	return m.Mutation
}

// found lists a mutation that a configuration must find.
func found(name, in, text string) Mutation { return listed(Mutant{Name: name, Text: text, In: in}) }

// redundant lists one that no configuration can find, and why.
func redundant(name, text, why string) Mutation {
	return listed(Mutant{Name: name, Text: text, Redundant: why})
}

// The breakages.
var (
	EntryAfterClaim    = found("EntryAfterClaim", "fill", "the claim entry is written after the claiming CAS")
	EntryBeforePublish = found("EntryBeforePublish", "fill", "the claim entry is cleared before the publishing CAS")
	EntryPlainStore    = found("EntryPlainStore", "tso-clear",
		"TSO: the claim entry is a plain store, not a sequentially consistent CAS")
	PhaseBeforeEntry = found("PhaseBeforeEntry", "clear-overwrite",
		"a set loads the phase before it writes its entry, and not after")
	PublishHalf   = found("PublishHalf", "fill", "a sample is published when half of it is written")
	MetaAfterWord = found("MetaAfterWord", "fill",
		"length or checksum, and fills, are stored after the publishing CAS")
	SumAfterWord = found("SumAfterWord", "arena-read",
		"the checksum of an arena's sample is stored after the publishing CAS")
	FillsKept      = found("FillsKept", "wrap", "a publish leaves fills as they are")
	FillsForgotten = found("FillsForgotten", "wrap-clear",
		"a set that stores the length of a new extent sets fills to 0")
	FullUnasked = found("FullUnasked", "clear-overwrite",
		"a set returns FULL because of free_from, without loading the phase")
	NoIntent         = found("NoIntent", "fill", "a slot is taken without an intent")
	IntentAfterSlot  = found("IntentAfterSlot", "fill", "the intent is stored after the slot was taken")
	AbortWordFirst   = found("AbortWordFirst", "one-slot", "an abort empties the word before it frees the slot")
	CursorFirst      = found("CursorFirst", "slots", "free_from is moved before the slot is freed, and not after")
	CursorWithoutSeq = found("CursorWithoutSeq", "slots", "freeing a slot moves free_from without seq")
	CursorWithSlot   = found("CursorWithSlot", "fill", "a reclaim moves free_from only if it has freed the slot itself")
	TakeWithoutLock  = found("TakeWithoutLock", "fill", "claims are reclaimed without the lock of their record")
	UnlockEarly      = found("UnlockEarly", "fill", "the record is unlocked before its last entry is cleared")
	TakeWordFirst    = found("TakeWordFirst", "fill", "a reclaim empties the word before it frees the slot")
	TakeEntryFirst   = found("TakeEntryFirst", "fill", "a reclaim clears the entry before it empties the word")
	TakeTogether     = found("TakeTogether", "threads-take", "two threads of a handle reclaim at the same time")
	OwnIntentOnly    = found("OwnIntentOnly", "threads", "a reclaim loads the intent of the present entry only")
	AdoptAnyIntent   = found("AdoptAnyIntent", "arena",
		"a reclaim gives the intent's extent to the sample without loading arena_next")
	AdoptWithoutLength = found("AdoptWithoutLength", "arena-stale",
		"a reclaim gives an extent to the sample without storing its length first")
	ExtendTogether = found("ExtendTogether", "arena-threads",
		"two threads of a handle allocate an extent at the same time")
	ExtentKeptTooLong = found("ExtentKeptTooLong", "arena",
		"an extent that is too small is kept in the word until the new one is named")
	KeptUnchecked = found("KeptUnchecked", "wrap-keep",
		"an extent is kept without loading its length again after the claim")
	RegisterFirst        = found("RegisterFirst", "fill", "a new client does not reclaim the claims of its record")
	RegisterUnseen       = found("RegisterUnseen", "recover", "a new client does not raise clients_high")
	RegisterIgnoresPhase = found("RegisterIgnoresPhase", "clear",
		"a new client does not finish the clear of the dead client with its number")
	PhaseWithoutLock = found("PhaseWithoutLock", "clear-late",
		"a dead clearer's phase is taken over after its record was unlocked")
	PhasePlainStore = found("PhasePlainStore", "tso-clear",
		"TSO: the phase is closed by a plain store, not a sequentially consistent CAS")
	DrainWithoutWait = found("DrainWithoutWait", "clear-overwrite",
		"a clear does not wait for the claims that are listed")
	DrainBeforePhase = found("DrainBeforePhase", "clear-overwrite",
		"a clear waits for the claims before it closes the phase")
	HighBeforePhase = found("HighBeforePhase", "clear-register",
		"a clear loads clients_high before it closes the phase")
	HalfClearOpened = found("HalfClearOpened", "clear-late",
		"a clear that was taken over and gives up opens the phase")
	OpenBeforeTable  = found("OpenBeforeTable", "clear", "a clear opens the phase before it empties the slot table")
	TableKept        = found("TableKept", "clear", "a clear leaves the slot table as it is")
	CursorKept       = found("CursorKept", "clear", "a clear leaves the slot table and free_from as they are")
	NoRecheck        = found("NoRecheck", "read", "a copy does not check the word again")
	NoMetaRecheck    = found("NoMetaRecheck", "wrap", "a copy does not check meta again")
	MetaRecheckFirst = found("MetaRecheckFirst", "wrap", "a copy checks meta again before the word")
	RecheckEarly     = found("RecheckEarly", "read",
		"a copy checks the word again before its last bytes (no load-load fence)")
	VictimElsewhere = found("VictimElsewhere", "evict-moved",
		"an evictor takes a slot whose sample names another slot")
	ChoiceUnchecked = found("ChoiceUnchecked", "evict-choice",
		"an evictor that has looked at other slots since does not check its victim's slot again")
	VictimUnlisted     = found("VictimUnlisted", "evict", "a victim is evicted without being listed")
	VictimListedLate   = found("VictimListedLate", "evict", "a victim is listed after it is RETIRING")
	VictimEmptiedFirst = found("VictimEmptiedFirst", "evict",
		"a victim is EMPTY, and not RETIRING, while the entry of its slot moves")
	VictimUnlistedEarly = found("VictimUnlistedEarly", "evict", "a victim is taken from the list before it is EMPTY")
	SlotMovedFirst      = found("SlotMovedFirst", "evict", "the entry of a slot moves before its sample is RETIRING")
	VictimKept          = found("VictimKept", "evict", "a reclaim leaves the victims of the dead as they are")
	VictimRestored      = found("VictimRestored", "evict",
		"a reclaim makes a victim READY again without loading the slot table")
	VictimDropped = found("VictimDropped", "evict", "a reclaim empties a victim without loading the slot table")
	RestForgotten = found("RestForgotten", "chains",
		"the intent of a slot to take does not name the rest of the chain")
	ChainIntentLate = found("ChainIntentLate", "chains", "the intent is stored after a slot of a chain was taken")
	ChainHeadOnly   = found("ChainHeadOnly", "chains", "a reclaim frees the first slot of a chain only")
	WordChainKept   = found("WordChainKept", "chains", "a reclaim does not free the chain that the word names")
	FreedUnnoted    = found("FreedUnnoted", "chains-read",
		"a slot of a chain is freed before the intent names what follows")
	CandidateCursor = found("CandidateCursor", "chains",
		"a reclaim does not move free_from for a slot of an intent that is not the sample's")
	CandidateUnchecked = found("CandidateUnchecked", "chains-grow",
		"a reclaim frees the slot of an intent, and what follows, whatever sample it belongs to")
	TakeFalling      = found("TakeFalling", "chains-last", "a reclaim begins with the last entry of the record")
	OverwriteForgets = found("OverwriteForgets", "chains-grow",
		"an overwrite that needs another number of slots takes new ones without freeing the old")
	RemovedUnlisted  = found("RemovedUnlisted", "chains", "a victim with a chain is claimed without being listed")
	VictimFreedFirst = found("VictimFreedFirst", "chains", "the chain of a victim is freed while it is READY")
	VictimEmptyFirst = found("VictimEmptyFirst", "chains",
		"a victim is EMPTY, and not claimed, while its chain is freed")
	PublishByStore = redundant("PublishByStore", "the publish is a plain store, not a CAS",
		"a claim is only reclaimed with the lock of its owner's record, so no client changes the word of a "+
			"living owner: the CAS cannot fail. It detects a bug or another program that breaks this rule, and "+
			"returns LOST")
	NoGenerationOnTakeback = redundant("NoGenerationOnTakeback", "a reclaim or an abort keeps the generation",
		"a copy compares READY words, and every way from one READY to another passes an overwrite or a clear of a "+
			"READY word, which count up. A claim of an EMPTY word that was claimed and emptied in between is as "+
			"good as a claim of the word before. The generation keeps old WRITING words from coming back, for "+
			"programs that inspect a segment")
	NoGenerationOnOverwrite = redundant("NoGenerationOnOverwrite", "an overwrite keeps the generation",
		"fills counts the publishes since, for copies and for a set that keeps an extent. The generation does "+
			"so too, without a load of meta, until it wraps around")
	NoGenerationOnClear = redundant("NoGenerationOnClear", "a clear keeps the generation",
		"the same: a sample that is READY again after a clear was published again")
)

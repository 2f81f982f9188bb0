package model

// Mutation is one deliberate breakage of the protocol: a line or two of the steps. Mutants
// describes each.
type Mutation uint8

// The breakages.
const (
	AsDocumented Mutation = iota
	EntryAfterClaim
	EntryBeforePublish
	EntryPlainStore
	PhaseBeforeEntry
	PublishHalf
	MetaAfterWord
	SumAfterWord
	FillsKept
	FillsForgotten
	FullUnasked
	NoIntent
	IntentAfterSlot
	AbortWordFirst
	CursorFirst
	CursorWithoutSeq
	CursorWithSlot
	TakeWithoutLock
	UnlockEarly
	TakeWordFirst
	TakeEntryFirst
	TakeTogether
	OwnIntentOnly
	AdoptAnyIntent
	AdoptWithoutLength
	ExtendTogether
	ExtentKeptTooLong
	KeptUnchecked
	RegisterFirst
	RegisterUnseen
	RegisterIgnoresPhase
	PhaseWithoutLock
	PhasePlainStore
	DrainWithoutWait
	DrainBeforePhase
	HighBeforePhase
	HalfClearOpened
	OpenBeforeTable
	TableKept
	CursorKept
	NoGenerationOnOverwrite
	NoGenerationOnClear
	NoRecheck
	NoMetaRecheck
	MetaRecheckFirst
	RecheckEarly
	PublishByStore
	NoGenerationOnTakeback
	VictimElsewhere
	ChoiceUnchecked
	VictimUnlisted
	VictimListedLate
	VictimEmptiedFirst
	VictimUnlistedEarly
	SlotMovedFirst
	VictimKept
	VictimRestored
	VictimDropped
	RestForgotten
	ChainIntentLate
	ChainHeadOnly
	WordChainKept
	FreedUnnoted
	CandidateCursor
	CandidateUnchecked
	TakeFalling
	OverwriteForgets
	RemovedUnlisted
	VictimFreedFirst
	VictimEmptyFirst

	mutationCount
)

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
var Mutants = []Mutant{
	{EntryAfterClaim, "EntryAfterClaim", "the claim entry is written after the claiming CAS", "fill", ""},
	{EntryBeforePublish, "EntryBeforePublish", "the claim entry is cleared before the publishing CAS", "fill", ""},
	{EntryPlainStore, "EntryPlainStore", "TSO: the claim entry is a plain store, not a sequentially consistent CAS",
		"tso-clear", ""},
	{PhaseBeforeEntry, "PhaseBeforeEntry",
		"a set loads the phase before it writes its entry, and not after", "clear-overwrite", ""},
	{PublishHalf, "PublishHalf", "a sample is published when half of it is written", "fill", ""},
	{MetaAfterWord, "MetaAfterWord", "length or checksum, and fills, are stored after the publishing CAS", "fill", ""},
	{SumAfterWord, "SumAfterWord", "the checksum of an arena's sample is stored after the publishing CAS",
		"arena-read", ""},
	{FillsKept, "FillsKept", "a publish leaves fills as they are", "wrap", ""},
	{FillsForgotten, "FillsForgotten", "a set that stores the length of a new extent sets fills to 0", "wrap-clear",
		""},
	{FullUnasked, "FullUnasked", "a set returns FULL because of free_from, without loading the phase",
		"clear-overwrite", ""},
	{NoIntent, "NoIntent", "a slot is taken without an intent", "fill", ""},
	{IntentAfterSlot, "IntentAfterSlot", "the intent is stored after the slot was taken", "fill", ""},
	{AbortWordFirst, "AbortWordFirst", "an abort empties the word before it frees the slot", "one-slot", ""},
	{CursorFirst, "CursorFirst", "free_from is moved before the slot is freed, and not after", "slots", ""},
	{CursorWithoutSeq, "CursorWithoutSeq", "freeing a slot moves free_from without seq", "slots", ""},
	{CursorWithSlot, "CursorWithSlot", "a reclaim moves free_from only if it has freed the slot itself", "fill",
		""},
	{TakeWithoutLock, "TakeWithoutLock", "claims are reclaimed without the lock of their record", "fill", ""},
	{UnlockEarly, "UnlockEarly", "the record is unlocked before its last entry is cleared", "fill", ""},
	{TakeWordFirst, "TakeWordFirst", "a reclaim empties the word before it frees the slot", "fill", ""},
	{TakeEntryFirst, "TakeEntryFirst", "a reclaim clears the entry before it empties the word", "fill", ""},
	{TakeTogether, "TakeTogether", "two threads of a handle reclaim at the same time", "threads-take", ""},
	{OwnIntentOnly, "OwnIntentOnly", "a reclaim loads the intent of the present entry only", "threads", ""},
	{AdoptAnyIntent, "AdoptAnyIntent",
		"a reclaim gives the intent's extent to the sample without loading arena_next", "arena", ""},
	{AdoptWithoutLength, "AdoptWithoutLength",
		"a reclaim gives an extent to the sample without storing its length first", "arena-stale", ""},
	{ExtendTogether, "ExtendTogether", "two threads of a handle allocate an extent at the same time", "arena-threads",
		""},
	{ExtentKeptTooLong, "ExtentKeptTooLong",
		"an extent that is too small is kept in the word until the new one is named", "arena", ""},
	{KeptUnchecked, "KeptUnchecked", "an extent is kept without loading its length again after the claim",
		"wrap-keep", ""},
	{RegisterFirst, "RegisterFirst", "a new client does not reclaim the claims of its record", "fill", ""},
	{RegisterUnseen, "RegisterUnseen", "a new client does not raise clients_high", "recover", ""},
	{RegisterIgnoresPhase, "RegisterIgnoresPhase",
		"a new client does not finish the clear of the dead client with its number",
		"clear", ""},
	{PhaseWithoutLock, "PhaseWithoutLock", "a dead clearer's phase is taken over after its record was unlocked",
		"clear-late", ""},
	{PhasePlainStore, "PhasePlainStore",
		"TSO: the phase is closed by a plain store, not a sequentially consistent CAS", "tso-clear", ""},
	{DrainWithoutWait, "DrainWithoutWait", "a clear does not wait for the claims that are listed", "clear-overwrite",
		""},
	{DrainBeforePhase, "DrainBeforePhase", "a clear waits for the claims before it closes the phase",
		"clear-overwrite", ""},
	{HighBeforePhase, "HighBeforePhase", "a clear loads clients_high before it closes the phase", "clear-register", ""},
	{HalfClearOpened, "HalfClearOpened", "a clear that was taken over and gives up opens the phase", "clear-late", ""},
	{OpenBeforeTable, "OpenBeforeTable", "a clear opens the phase before it empties the slot table", "clear", ""},
	{TableKept, "TableKept", "a clear leaves the slot table as it is", "clear", ""},
	{CursorKept, "CursorKept", "a clear leaves the slot table and free_from as they are", "clear", ""},
	{NoRecheck, "NoRecheck", "a copy does not check the word again", "read", ""},
	{NoMetaRecheck, "NoMetaRecheck", "a copy does not check meta again", "wrap", ""},
	{MetaRecheckFirst, "MetaRecheckFirst", "a copy checks meta again before the word", "wrap", ""},
	{RecheckEarly, "RecheckEarly", "a copy checks the word again before its last bytes (no load-load fence)", "read",
		""},
	{VictimElsewhere, "VictimElsewhere", "an evictor takes a slot whose sample names another slot", "evict-moved", ""},
	{ChoiceUnchecked, "ChoiceUnchecked",
		"an evictor that has looked at other slots since does not check its victim's slot again",
		"evict-choice", ""},
	{VictimUnlisted, "VictimUnlisted", "a victim is evicted without being listed", "evict", ""},
	{VictimListedLate, "VictimListedLate", "a victim is listed after it is RETIRING", "evict", ""},
	{VictimEmptiedFirst, "VictimEmptiedFirst",
		"a victim is EMPTY, and not RETIRING, while the entry of its slot moves", "evict", ""},
	{VictimUnlistedEarly, "VictimUnlistedEarly", "a victim is taken from the list before it is EMPTY", "evict", ""},
	{SlotMovedFirst, "SlotMovedFirst", "the entry of a slot moves before its sample is RETIRING", "evict", ""},
	{VictimKept, "VictimKept", "a reclaim leaves the victims of the dead as they are", "evict", ""},
	{VictimRestored, "VictimRestored", "a reclaim makes a victim READY again without loading the slot table",
		"evict", ""},
	{VictimDropped, "VictimDropped", "a reclaim empties a victim without loading the slot table", "evict", ""},
	{RestForgotten, "RestForgotten", "the intent of a slot to take does not name the rest of the chain", "chains", ""},
	{ChainIntentLate, "ChainIntentLate", "the intent is stored after a slot of a chain was taken", "chains", ""},
	{ChainHeadOnly, "ChainHeadOnly", "a reclaim frees the first slot of a chain only", "chains", ""},
	{WordChainKept, "WordChainKept", "a reclaim does not free the chain that the word names", "chains", ""},
	{FreedUnnoted, "FreedUnnoted", "a slot of a chain is freed before the intent names what follows", "chains-read",
		""},
	{CandidateCursor, "CandidateCursor",
		"a reclaim does not move free_from for a slot of an intent that is not the sample's", "chains", ""},
	{CandidateUnchecked, "CandidateUnchecked",
		"a reclaim frees the slot of an intent, and what follows, whatever sample it belongs to", "chains-grow", ""},
	{TakeFalling, "TakeFalling", "a reclaim begins with the last entry of the record", "chains-last", ""},
	{OverwriteForgets, "OverwriteForgets",
		"an overwrite that needs another number of slots takes new ones without freeing the old", "chains-grow", ""},
	{RemovedUnlisted, "RemovedUnlisted", "a victim with a chain is claimed without being listed", "chains", ""},
	{VictimFreedFirst, "VictimFreedFirst", "the chain of a victim is freed while it is READY", "chains", ""},
	{VictimEmptyFirst, "VictimEmptyFirst", "a victim is EMPTY, and not claimed, while its chain is freed", "chains",
		""},
	{PublishByStore, "PublishByStore", "the publish is a plain store, not a CAS", "",
		"a claim is only reclaimed with the lock of its owner's record, so no client changes the word of a " +
			"living owner: the CAS cannot fail. It detects a bug or another program that breaks this rule, and " +
			"returns LOST"},
	{NoGenerationOnTakeback, "NoGenerationOnTakeback", "a reclaim or an abort keeps the generation", "",
		"a copy compares READY words, and every way from one READY to another passes an overwrite or a clear of a " +
			"READY word, which count up. A claim of an EMPTY word that was claimed and emptied in between is as " +
			"good as a claim of the word before. The generation keeps old WRITING words from coming back, for " +
			"programs that inspect a segment"},
	{NoGenerationOnOverwrite, "NoGenerationOnOverwrite", "an overwrite keeps the generation", "",
		"fills counts the publishes since, for copies and for a set that keeps an extent. The generation does " +
			"so too, without a load of meta, until it wraps around"},
	{NoGenerationOnClear, "NoGenerationOnClear", "a clear keeps the generation", "",
		"the same: a sample that is READY again after a clear was published again"},
}

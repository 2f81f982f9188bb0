package model

// Mutation is one deliberate breakage of the protocol.
type Mutation uint8

// The breakages. Each is a line or two of the steps.
const (
	AsDocumented            Mutation = iota
	EntryAfterClaim                  // the claim entry is written after the claiming CAS
	EntryBeforePublish               // the claim entry is cleared before the publishing CAS
	EntryPlainStore                  // TSO: the claim entry is a plain store, not a sequentially consistent CAS
	PhaseBeforeEntry                 // the claimant looks at the phase before it writes its entry, and not after
	PublishHalf                      // a sample is published when half of it is written
	MetaAfterWord                    // length and checksum are stored after the publishing CAS
	FullUnasked                      // a set answers FULL from free_from alone, without looking at the phase
	NoIntent                         // a slot is taken without an intent
	IntentAfterSlot                  // the intent is stored after the slot was taken
	AbortWordFirst                   // an abort empties the word before it frees the slot
	CursorFirst                      // free_from is moved before the slot is freed, and not after
	CursorWithoutSeq                 // freeing a slot moves free_from without seq
	CursorWithSlot                   // a take-back moves free_from only if it was the one to free the slot
	TakeWithoutLock                  // claims are taken back without the lock of their record
	UnlockEarly                      // the record is unlocked before its last entry is cleared
	TakeWordFirst                    // a take-back empties the word before it frees the slot
	TakeEntryFirst                   // a take-back clears the entry before it empties the word
	TakeTogether                     // two threads of a handle take back at the same time
	OwnIntentOnly                    // a take-back looks at the intent of the entry at hand only
	AdoptAnyIntent                   // a take-back gives the intent's extent to the sample without asking arena_next
	AdoptWithoutLength               // a take-back gives an extent to the sample without storing its length first
	ExtendTogether                   // two threads of a handle allocate an extent at the same time
	ExtentKeptTooLong                // an extent that is too small is kept in the word until the new one is named
	RegisterFirst                    // a new client does not take back the claims of its record
	RegisterUnseen                   // a new client does not raise clients_high
	RegisterIgnoresPhase             // a new client does not finish the clear of its dead namesake
	PhaseWithoutLock                 // a dead clearer's phase is taken over after its record was unlocked
	PhasePlainStore                  // TSO: the phase is closed by a plain store, not a sequentially consistent CAS
	DrainWithoutWait                 // a clear does not wait for the claims that are listed
	DrainBeforePhase                 // a clear waits for the claims before it closes the phase
	HighBeforePhase                  // a clear loads clients_high before it closes the phase
	HalfClearOpened                  // a clear that was taken over and gives up opens the phase
	OpenBeforeTable                  // a clear opens the phase before it empties the slot table
	TableKept                        // a clear leaves the slot table as it is
	CursorKept                       // a clear leaves the slot table and free_from as they are
	NoGenerationOnOverwrite          // an overwrite keeps the generation
	NoGenerationOnClear              // a clear keeps the generation
	NoRecheck                        // a copy does not check the word again
	RecheckEarly                     // a copy checks the word again before its last bytes (no load-load fence)
	// The rest change nothing that the invariants of bytes and slots can see; Mutants says why.
	PublishByStore         // the publish is a plain store, not a CAS
	NoGenerationOnTakeback // a take-back or an abort keeps the generation
)

// keepsGeneration says that a mutation breaks the table of states by its definition, so that it is the bytes and slots that must show it.
func (m Mutation) keepsGeneration() bool {
	return m == NoGenerationOnOverwrite || m == NoGenerationOnTakeback || m == NoGenerationOnClear
}

// Mutant is a mutation with its text and what the checker must make of it.
type Mutant struct {
	Mutation  Mutation
	Name      string
	Text      string
	Redundant string // not "": why the checker finds nothing, which is then what must happen
}

// Mutants lists every mutation.
var Mutants = []Mutant{
	{EntryAfterClaim, "EntryAfterClaim", "the claim entry is written after the claiming CAS", ""},
	{EntryBeforePublish, "EntryBeforePublish", "the claim entry is cleared before the publishing CAS", ""},
	{EntryPlainStore, "EntryPlainStore", "TSO: the claim entry is a plain store, not a sequentially consistent CAS", ""},
	{PhaseBeforeEntry, "PhaseBeforeEntry", "the claimant looks at the phase before it writes its entry, and not after", ""},
	{PublishHalf, "PublishHalf", "a sample is published when half of it is written", ""},
	{MetaAfterWord, "MetaAfterWord", "length and checksum are stored after the publishing CAS", ""},
	{FullUnasked, "FullUnasked", "a set answers FULL from free_from alone, without looking at the phase", ""},
	{NoIntent, "NoIntent", "a slot is taken without an intent", ""},
	{IntentAfterSlot, "IntentAfterSlot", "the intent is stored after the slot was taken", ""},
	{AbortWordFirst, "AbortWordFirst", "an abort empties the word before it frees the slot", ""},
	{CursorFirst, "CursorFirst", "free_from is moved before the slot is freed, and not after", ""},
	{CursorWithoutSeq, "CursorWithoutSeq", "freeing a slot moves free_from without seq", ""},
	{CursorWithSlot, "CursorWithSlot", "a take-back moves free_from only if it was the one to free the slot", ""},
	{TakeWithoutLock, "TakeWithoutLock", "claims are taken back without the lock of their record", ""},
	{UnlockEarly, "UnlockEarly", "the record is unlocked before its last entry is cleared", ""},
	{TakeWordFirst, "TakeWordFirst", "a take-back empties the word before it frees the slot", ""},
	{TakeEntryFirst, "TakeEntryFirst", "a take-back clears the entry before it empties the word", ""},
	{TakeTogether, "TakeTogether", "two threads of a handle take back at the same time", ""},
	{OwnIntentOnly, "OwnIntentOnly", "a take-back looks at the intent of the entry at hand only", ""},
	{AdoptAnyIntent, "AdoptAnyIntent", "a take-back gives the intent's extent to the sample without asking arena_next", ""},
	{AdoptWithoutLength, "AdoptWithoutLength", "a take-back gives an extent to the sample without storing its length first", ""},
	{ExtendTogether, "ExtendTogether", "two threads of a handle allocate an extent at the same time", ""},
	{ExtentKeptTooLong, "ExtentKeptTooLong", "an extent that is too small is kept in the word until the new one is named", ""},
	{RegisterFirst, "RegisterFirst", "a new client does not take back the claims of its record", ""},
	{RegisterUnseen, "RegisterUnseen", "a new client does not raise clients_high", ""},
	{RegisterIgnoresPhase, "RegisterIgnoresPhase", "a new client does not finish the clear of its dead namesake", ""},
	{PhaseWithoutLock, "PhaseWithoutLock", "a dead clearer's phase is taken over after its record was unlocked", ""},
	{PhasePlainStore, "PhasePlainStore", "TSO: the phase is closed by a plain store, not a sequentially consistent CAS", ""},
	{DrainWithoutWait, "DrainWithoutWait", "a clear does not wait for the claims that are listed", ""},
	{DrainBeforePhase, "DrainBeforePhase", "a clear waits for the claims before it closes the phase", ""},
	{HighBeforePhase, "HighBeforePhase", "a clear loads clients_high before it closes the phase", ""},
	{HalfClearOpened, "HalfClearOpened", "a clear that was taken over and gives up opens the phase", ""},
	{OpenBeforeTable, "OpenBeforeTable", "a clear opens the phase before it empties the slot table", ""},
	{TableKept, "TableKept", "a clear leaves the slot table as it is", ""},
	{CursorKept, "CursorKept", "a clear leaves the slot table and free_from as they are", ""},
	{NoGenerationOnOverwrite, "NoGenerationOnOverwrite", "an overwrite keeps the generation", ""},
	{NoGenerationOnClear, "NoGenerationOnClear", "a clear keeps the generation", ""},
	{NoRecheck, "NoRecheck", "a copy does not check the word again", ""},
	{RecheckEarly, "RecheckEarly", "a copy checks the word again before its last bytes (no load-load fence)", ""},
	{PublishByStore, "PublishByStore", "the publish is a plain store, not a CAS", "x"},
	{NoGenerationOnTakeback, "NoGenerationOnTakeback", "a take-back or an abort keeps the generation", "x"},
}

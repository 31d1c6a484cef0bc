------------------------------ MODULE Migration ------------------------------
(***************************************************************************)
(* Moving a table from HMS locks to ZooKeeper while everybody writes:      *)
(* phases hms, both, zookeeper, and back. Phase and epoch are in the       *)
(* table's metadata, so each change of them is a new metadata location.    *)
(*                                                                         *)
(* New writers read the phase under their locks, and start over when it    *)
(* asks for other ones. Old writers know nothing but the HMS lock, and     *)
(* alter without a condition. Operators change the phase by one step. The  *)
(* server compares and sets where it is asked to.                          *)
(*                                                                         *)
(* The guard is a permanent SHARED_READ lock in HMS: no one gets the       *)
(* EXCLUSIVE lock while it exists. See docs/decisions/007.                 *)
(*                                                                         *)
(* A metadata file is <<writer, phase, epoch>>; the table is its log.      *)
(***************************************************************************)
EXTENDS Naturals, Sequences, FiniteSets, TLC

CONSTANTS
    New, Old, Operators,
    NoOne,
    MaxFaults,      \* Deaths, and leases of the living that run out.
    Starts,         \* Phases in which the table may be at first.
    Telling,
    \* The guards.
    SecondLock,     \* In "both", new writers take the HMS lock too.
    PhaseCheck,     \* The phase is read under the locks, and others are taken when it asks for them.
    GuardStands,    \* In "zookeeper" the guard is granted before a swap is sent.
    AckWhileHeld,   \* Where the HMS lock is taken, SUCCESS is said only if it is still held when the swap was answered.
    GuardLast,      \* Back from "zookeeper": first the phase is changed, then the guard goes.
    StepsBack,      \* A client that waits for its second lock, or the guard, looks at the phase meanwhile, and lets go.
    Conditional     \* A change of phase compares and sets, as every swap of ours.

VARIABLES log, hms, zk, guard, pc, knows, base, acked, faults, told

View == <<log, hms, zk, guard, pc, knows, base, acked, faults>>
vars == <<View, told>>
All == New \cup Old \cup Operators
Ours == New \cup Operators

Say(from, to, what) == told' = IF Telling THEN <<from, to, what>> ELSE <<>>
Newest(files) == files[Len(files)]
Phase(files) == Newest(files)[2]
Epoch(files) == Newest(files)[3]
Fault == faults > 0 /\ faults' = faults - 1
Goes(w, where) == pc' = [pc EXCEPT ![w] = where]
Frees(w) == hms' = (IF hms = w THEN NoOne ELSE hms) /\ zk' = (IF zk = w THEN NoOne ELSE zk)
IsPrefix(short, long) == Len(short) <= Len(long) /\ SubSeq(long, 1, Len(short)) = short

\* Which locks a phase asks for. An operator takes both, except on its way back: the guard exists then.
NeedsHms(w, phase) == phase = "hms" \/ (phase = "both" /\ (SecondLock \/ w \notin New))
NeedsZk(w, phase) == phase # "hms" \/ w \in Operators
Held(w) == (NeedsHms(w, knows[w]) => hms = w) /\ (NeedsZk(w, knows[w]) => zk = w)

Init ==
    /\ \E phase \in Starts : log = << <<NoOne, phase, 1>> >>
    /\ hms = NoOne /\ zk = NoOne
    /\ guard = (GuardStands /\ Phase(log) = "zookeeper")
    /\ pc = [w \in All |-> "idle"]
    /\ knows \in [All -> {"hms", "both", "zookeeper"}]  \* From some earlier look at the table.
    /\ \A w \in Old : knows[w] = "hms"
    /\ base = [w \in All |-> <<>>]
    /\ acked = {}
    /\ faults = MaxFaults
    /\ told = <<>>

-----------------------------------------------------------------------------
(* Ours: take what the phase asks for, HMS first; read; start over or go on. *)

TakeHms(w) ==
    /\ pc[w] = "idle" /\ NeedsHms(w, knows[w]) /\ hms = NoOne /\ ~guard
    /\ hms' = w
    /\ Goes(w, IF w \in Ours /\ NeedsZk(w, knows[w]) THEN "half" ELSE "in")
    /\ Say(w, "hms", "takes the HMS lock")
    /\ UNCHANGED <<log, zk, guard, knows, base, acked, faults>>

\* The guard blocks it: the table says why.
MeetGuard(w) ==
    /\ pc[w] = "idle" /\ w \in Ours /\ NeedsHms(w, knows[w]) /\ guard /\ knows[w] # Phase(log)
    /\ knows' = [knows EXCEPT ![w] = Phase(log)]
    /\ Say(w, "table", "meets the guard, and reads the phase: " \o Phase(log))
    /\ UNCHANGED <<log, hms, zk, guard, pc, base, acked, faults>>

TakeZk(w) ==
    /\ w \in Ours /\ NeedsZk(w, knows[w]) /\ zk = NoOne
    /\ pc[w] = "half" \/ (pc[w] = "idle" /\ ~NeedsHms(w, knows[w]))
    /\ zk' = w
    /\ Goes(w, "in")
    /\ Say(w, "zookeeper", "takes the ZooKeeper lock")
    /\ UNCHANGED <<log, hms, guard, knows, base, acked, faults>>

\* Else: A knows "both", holds HMS's lock and waits for ZooKeeper's; B, in phase "zookeeper", holds ZooKeeper's, and its
\* guard waits for HMS's. Neither goes on.
\* The same for who waits to set the guard: a phase that went back has let somebody take HMS's lock again.
StepBack(w) ==
    /\ StepsBack /\ w \in Ours /\ Phase(log) # knows[w]
    /\ pc[w] = "half" \/ (pc[w] = "sure" /\ ~guard /\ hms # NoOne)
    /\ knows' = [knows EXCEPT ![w] = Phase(log)]
    /\ Frees(w) /\ Goes(w, "idle")
    /\ Say(w, "table", "waits, and reads the phase " \o Phase(log) \o ": lets go, and starts over")
    /\ UNCHANGED <<log, guard, base, acked, faults>>

Read(w) ==
    /\ pc[w] = "in"
    /\ base' = [base EXCEPT ![w] = log]
    /\ IF w \in Ours /\ PhaseCheck /\ Phase(log) # knows[w]
       THEN /\ knows' = [knows EXCEPT ![w] = Phase(log)]
            /\ Frees(w) /\ Goes(w, "idle")
            /\ Say(w, "table", "reads the phase " \o Phase(log) \o ": lets go, and starts over")
       ELSE /\ Goes(w, "read") /\ UNCHANGED <<hms, zk, knows>>
            /\ Say(w, "table", "reads the table in phase " \o Phase(log) \o " and builds on it")
    /\ UNCHANGED <<log, guard, acked, faults>>

Ensure(w) ==
    /\ pc[w] = "read" /\ w \in Ours
    /\ IF Held(w)
       THEN Goes(w, "sure") /\ UNCHANGED <<hms, zk>> /\ Say(w, w, "makes sure of its locks")
       ELSE Goes(w, "done") /\ Frees(w) /\ Say(w, w, "has lost a lock: FAILURE")
    /\ UNCHANGED <<log, guard, knows, base, acked, faults>>

Guarded(w) == GuardStands /\ Phase(base[w]) = "zookeeper"
Ready(w) == pc[w] = "guarded" \/ (pc[w] = "sure" /\ ~Guarded(w))

\* The guard waits for an EXCLUSIVE lock that is held.
Stand(w) ==
    /\ pc[w] = "sure" /\ w \in Ours /\ Guarded(w) /\ (guard \/ hms = NoOne)
    /\ guard' = TRUE
    /\ Goes(w, "guarded")
    /\ Say(w, "hms", IF guard THEN "finds that the guard is there" ELSE "sets the guard")
    /\ UNCHANGED <<log, hms, zk, knows, base, acked, faults>>

Swap(w) ==
    /\ Ready(w) /\ w \in New
    /\ IF log = base[w]
       THEN /\ log' = Append(log, <<w, Phase(log), Epoch(log)>>)
            /\ Goes(w, "swapped") /\ UNCHANGED <<hms, zk, acked>>
            /\ Say(w, "table", "swaps the pointer")
       ELSE /\ Goes(w, "in") /\ UNCHANGED <<log, hms, zk, acked>>
            /\ Say(w, "table", "finds the pointer moved, and reads again")
    /\ UNCHANGED <<guard, knows, base, faults>>

\* By then an old writer may have read the table before our swap, under a lock that we had lost.
Acknowledge(w) ==
    /\ pc[w] = "swapped"
    /\ IF AckWhileHeld /\ NeedsHms(w, knows[w]) /\ hms # w
       THEN UNCHANGED acked /\ Say(w, w, "has lost the HMS lock meanwhile: UNKNOWN")
       ELSE acked' = acked \cup {w} /\ Say(w, w, "SUCCESS, and lets go")
    /\ Frees(w) /\ Goes(w, "done")
    /\ UNCHANGED <<log, guard, knows, base, faults>>

-----------------------------------------------------------------------------
(* Old writers: the HMS lock, and no condition. *)

Alter(w) ==
    /\ pc[w] = "read" /\ w \in Old
    /\ log' = Append(base[w], <<w, Phase(base[w]), Epoch(base[w])>>)
    /\ acked' = acked \cup {w}
    /\ Frees(w) /\ Goes(w, "done")
    /\ Say(w, "table", "alters without a condition: SUCCESS" \o (IF log # base[w] THEN ", over another head" ELSE ""))
    /\ UNCHANGED <<guard, knows, base, faults>>

-----------------------------------------------------------------------------
(* Operators: one step forth or back, under the locks of the phase before, ZooKeeper's always among them. *)

Change(w, phase) ==
    /\ Ready(w) /\ w \in Operators
    /\ phase # Phase(base[w]) /\ "both" \in {phase, Phase(base[w])}
    /\ Guarded(w) => (GuardLast \/ ~guard)
    /\ IF log = base[w] \/ ~Conditional
       THEN /\ log' = Append(base[w], <<w, phase, Epoch(base[w]) + 1>>)
            /\ Say(w, "table", "changes the phase from " \o Phase(base[w]) \o " to " \o phase)
       ELSE UNCHANGED log /\ Say(w, "table", "finds the pointer moved: gives up")
    /\ Goes(w, "changed")
    /\ UNCHANGED <<hms, zk, guard, knows, base, acked, faults>>

\* Under the ZooKeeper lock. In the variant it goes before the phase is changed.
Unguard(w) ==
    /\ w \in Operators /\ guard
    /\ IF GuardLast THEN pc[w] = "changed" /\ Phase(log) # "zookeeper" ELSE pc[w] = "guarded"
    /\ guard' = FALSE
    /\ Say(w, "hms", "removes the guard")
    /\ UNCHANGED <<log, hms, zk, pc, knows, base, acked, faults>>

Leave(w) ==
    /\ w \in Operators /\ pc[w] = "changed" /\ (guard => Phase(log) = "zookeeper")
    /\ Frees(w) /\ Goes(w, "done")
    /\ Say(w, w, "lets go of its locks")
    /\ UNCHANGED <<log, guard, knows, base, acked, faults>>

\* An operator died between the change and this. A client that finds a guard that no phase asks for removes it, under the
\* ZooKeeper lock (one step here), so that no phase can ask for it meanwhile.
Sweep(w) ==
    /\ w \in Ours /\ pc[w] = "idle" /\ guard /\ Phase(log) # "zookeeper" /\ zk = NoOne
    /\ guard' = FALSE
    /\ Say(w, "hms", "removes a guard that was left behind")
    /\ UNCHANGED <<log, hms, zk, pc, knows, base, acked, faults>>

-----------------------------------------------------------------------------

Die(w) ==
    /\ pc[w] \notin {"idle", "done", "dead"} /\ Fault
    /\ Goes(w, "dead")
    /\ Say(w, w, "dies")
    /\ UNCHANGED <<log, hms, zk, guard, knows, base, acked>>

Expire(w) ==
    /\ hms = w \/ zk = w
    /\ pc[w] = "dead" \/ w \in Ours  \* Old writers are assumed to keep theirs while they live.
    /\ IF pc[w] = "dead" THEN UNCHANGED faults ELSE Fault
    /\ Frees(w)
    /\ Say(w, w, "its leases run out")
    /\ UNCHANGED <<log, guard, pc, knows, base, acked>>

\* An old writer may wait for the guard for ever: it fails by its own timeout, and changes nothing.
GiveUp(w) ==
    /\ w \in Old /\ pc[w] = "idle" /\ guard
    /\ Goes(w, "done")
    /\ Say("hms", w, "is not granted the lock because of the guard: fails")
    /\ UNCHANGED <<log, hms, zk, guard, knows, base, acked, faults>>

Finished == hms = NoOne /\ zk = NoOne /\ (\A w \in All : pc[w] \in {"done", "dead"}) /\ UNCHANGED vars

Next ==
    \/ \E w \in All : TakeHms(w) \/ MeetGuard(w) \/ TakeZk(w) \/ StepBack(w) \/ Read(w) \/ Ensure(w)
                      \/ Stand(w) \/ Swap(w) \/ Acknowledge(w) \/ Alter(w)
                      \/ (\E phase \in {"hms", "both", "zookeeper"} : Change(w, phase))
                      \/ Unguard(w) \/ Leave(w) \/ Sweep(w) \/ Die(w) \/ Expire(w) \/ GiveUp(w)
    \/ Finished
Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------

\* An acknowledged commit is in the table, also that of an old writer.
AcknowledgedStays == \A w \in acked : \E i \in 1..Len(log) : log[i][1] = w
\* The parent of each head of ours is the head before it.
Unbroken == [][Newest(log')[1] \in Ours => IsPrefix(log, log') /\ Len(log') = Len(log) + 1]_log
\* The epoch grows by one with each change of phase, and with nothing else.
EpochGrows == \A i \in 2..Len(log) : log[i][3] = log[i - 1][3] + (IF log[i][2] # log[i - 1][2] THEN 1 ELSE 0)

Alike == Permutations(New) \cup Permutations(Old) \cup Permutations(Operators)
=============================================================================

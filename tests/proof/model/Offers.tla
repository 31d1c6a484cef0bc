------------------------------- MODULE Offers -------------------------------
(***************************************************************************)
(* Offers to other processes on the metastore's locks, to be read beside   *)
(* commit_coord/locks/hms/offers.py. The commit around them is that of     *)
(* Commit.tla, with fewer steps.                                           *)
(*                                                                         *)
(* The metastore keeps a queue and nothing else. What a writer offers is a *)
(* file; that a holder took it is a second file, the mark; what became of  *)
(* it is a third one, the outcome. A file store has no operation that does *)
(* two things at once: between any two steps of a writer anything may      *)
(* happen.                                                                 *)
(***************************************************************************)
EXTENDS Naturals, Sequences, FiniteSets, TLC

CONSTANTS
    Writers,      \* Who commits.
    NoOne,
    MaxFaults,    \* Deaths, expiries of the living, lost answers, timeouts, late files: so many in all.
    MaxTries,     \* Swaps that may find the pointer moved.
    Telling,
    \* The guards. All TRUE is the protocol; each variant takes one away.
    Cas,          \* The server compares before it sets.
    SecondLook,   \* A holder looks for the offer once more, after it has written its mark.
    LookForMark,  \* An owner that has deleted its offer looks for a mark.
    DeleteFirst,  \* It deletes the offer before it looks for the mark.
    LateIsDoubt,  \* An offer whose writing was not confirmed may come later.
    OnlyProven,   \* An offer is returned only if its holder's swap is proven not to have landed.
    ReportsHeld,  \* A holder reports outcomes only if it has made sure that its lease is still there.
    OwnerLeaves,  \* A request is taken out of the queue by its owner alone, whatever became of its offer.
    LookForOwn    \* An append that is in the table already is not added again.

VARIABLES
    log,        \* The table: what each swap added.
    flying,     \* Swaps that were sent and not carried out yet.
    queue,      \* The latch: writers.
    offer,      \* Writers whose offer is in the store.
    late,       \* Writers whose offer is on its way there.
    mark,       \* By writer: the holder that has marked its offer.
    outcome,    \* By writer: "none" or "done". An offer that was returned is in another round: without a mark.
    pc,         \* Where each writer is.
    published,  \* Writers that have sent their offer.
    base,       \* What it read.
    behind,     \* The waiters that it has listed and not looked at yet.
    carried,    \* The appends that it took.
    tries,      \* Swaps that it planned.
    answer,     \* "none", "swapped" or "moved".
    doubt,      \* Writers whose append somebody else may have in hand.
    verdict,    \* What it will say: "none", "success", "failure" or "unknown".
    lost,       \* Writers whose request ran out.
    faults, told

files == <<offer, late, mark, outcome>>
service == <<log, flying, queue, files>>
writer == <<pc, published, base, behind, carried, tries, answer, doubt, verdict, lost>>
View == <<service, writer, faults>>
vars == <<service, writer, faults, told>>

-----------------------------------------------------------------------------

Say(from, to, what) == told' = IF Telling THEN <<from, to, what>> ELSE <<>>
Fault == faults > 0 /\ faults' = faults - 1
Goes(w, where) == pc' = [pc EXCEPT ![w] = where]
Range(seq) == {seq[i] : i \in 1..Len(seq)}
Without(w) == SelectSeq(queue, LAMBDA other : other # w)
Holds(w) == Len(queue) > 0 /\ queue[1] = w
Adds(w, head) == {<<i, j>> \in (1..Len(head)) \X (1..Cardinality(Writers)) :
                        j <= Len(head[i][3]) /\ head[i][3][j] = w}
In(w, head) == Adds(w, head) # {}
File(w) == <<w, tries[w], <<w>> \o SelectSeq(carried[w], LAMBDA m : ~(LookForOwn /\ In(m, base[w])))>>
Landed(w) == \E i \in 1..Len(log) : log[i] = File(w)
IsPrefix(short, long) == Len(short) <= Len(long) /\ SubSeq(long, 1, Len(short)) = short
Ends(w, what, where) == /\ verdict' = [verdict EXCEPT ![w] = what]
                        /\ Goes(w, where)

Init ==
    /\ log = <<>> /\ flying = {} /\ queue = <<>> /\ offer = {} /\ late = {}
    /\ mark = [w \in Writers |-> NoOne]
    /\ outcome = [w \in Writers |-> "none"]
    /\ pc = [w \in Writers |-> "idle"]
    /\ published = {}
    /\ base = [w \in Writers |-> <<>>]
    /\ behind = [w \in Writers |-> <<>>]
    /\ carried = [w \in Writers |-> <<>>]
    /\ tries = [w \in Writers |-> 0]
    /\ answer = [w \in Writers |-> "none"]
    /\ doubt = {}
    /\ verdict = [w \in Writers |-> "none"]
    /\ lost = {}
    /\ faults = MaxFaults
    /\ told = <<>>

-----------------------------------------------------------------------------
(* The owner waits *)

Enter(w) ==  \* Also a waiter whose request ran out: at the end of the queue, with the offer that it has made.
    /\ \/ pc[w] = "idle"
       \/ pc[w] = "waiting" /\ w \notin Range(queue)
    /\ queue' = Append(queue, w)
    /\ lost' = lost \ {w}
    /\ Goes(w, "waiting")
    /\ Say(w, "locks", "asks for the latch")
    /\ UNCHANGED <<log, flying, files, published, base, behind, carried, tries, answer, doubt, verdict, faults>>

Publish(w) ==
    /\ pc[w] = "waiting" /\ w \notin published
    /\ published' = published \cup {w}
    /\ \/ /\ offer' = offer \cup {w}
          /\ Say(w, "store", "writes its offer")
          /\ UNCHANGED <<late, doubt, faults>>
       \/ /\ Fault
          /\ late' = late \cup {w}
          /\ doubt' = IF LateIsDoubt THEN doubt \cup {w} ELSE doubt
          /\ Say(w, "store", "writes its offer, and gets no answer")
          /\ UNCHANGED offer
    /\ UNCHANGED <<log, flying, queue, mark, outcome, pc, base, behind, carried, tries, answer, verdict, lost>>

Arrive(w) ==
    /\ w \in late
    /\ late' = late \ {w} /\ offer' = offer \cup {w}
    /\ Say("store", "store", "writes the offer of " \o ToString(w) \o " after all")
    /\ UNCHANGED <<log, flying, queue, mark, outcome, writer, faults>>

SeeOutcome(w) ==
    /\ pc[w] \in {"waiting", "asking"} /\ outcome[w] = "done"
    /\ Ends(w, "success", "leaving")
    /\ Say(w, "store", "finds the outcome: a holder has published its append")
    /\ UNCHANGED <<service, published, base, behind, carried, tries, answer, doubt, lost, faults>>

Granted(w) ==
    /\ pc[w] = "waiting" /\ Holds(w) /\ outcome[w] # "done"
    /\ Goes(w, IF w \in published THEN "granted" ELSE "planning")
    /\ Say("locks", w, "grants the latch")
    /\ UNCHANGED <<service, published, base, behind, carried, tries, answer, doubt, verdict, lost, faults>>

TimeOut(w) ==
    /\ pc[w] = "waiting" /\ Fault
    /\ Goes(w, "late")
    /\ Say(w, w, "waits no longer: its deadline has passed")
    /\ UNCHANGED <<service, published, base, behind, carried, tries, answer, doubt, verdict, lost>>

-----------------------------------------------------------------------------
(* The owner retracts its offer, in two steps *)

IsMarked(w) == mark[w] # NoOne
Second == ("granted" :> "granted2") @@ ("late" :> "late2")

Retract1(w) ==
    /\ pc[w] \in {"granted", "late"}
    /\ IF DeleteFirst
       THEN offer' = offer \ {w} /\ UNCHANGED doubt /\ Say(w, "store", "deletes its offer")
       ELSE doubt' = (IF LookForMark /\ IsMarked(w) THEN doubt \cup {w} ELSE doubt) /\ UNCHANGED offer
            /\ Say(w, "store", IF IsMarked(w) THEN "finds a mark" ELSE "finds no mark")
    /\ Goes(w, Second[pc[w]])
    /\ UNCHANGED <<log, flying, queue, late, mark, outcome, published, base, behind, carried, tries, answer, verdict,
                   lost, faults>>

Retract2(w) ==
    /\ pc[w] \in {"granted2", "late2"}
    /\ IF DeleteFirst
       THEN doubt' = (IF LookForMark /\ IsMarked(w) THEN doubt \cup {w} ELSE doubt) /\ UNCHANGED offer
            /\ Say(w, "store", IF ~LookForMark THEN "looks for no mark"
                               ELSE IF IsMarked(w) THEN "finds a mark" ELSE "finds no mark")
       ELSE offer' = offer \ {w} /\ UNCHANGED doubt /\ Say(w, "store", "deletes its offer")
    /\ CASE pc[w] = "granted2" -> Goes(w, "planning") /\ UNCHANGED verdict
         [] w \in doubt' -> Goes(w, "asking") /\ UNCHANGED verdict
         [] OTHER -> Ends(w, "failure", "leaving")
    /\ UNCHANGED <<log, flying, queue, late, mark, outcome, published, base, behind, carried, tries, answer, lost,
                   faults>>

GiveUp(w) ==
    /\ pc[w] = "asking"
    /\ Ends(w, "unknown", "leaving")
    /\ Say(w, w, "waits for no outcome any more: UNKNOWN")
    /\ UNCHANGED <<service, published, base, behind, carried, tries, answer, doubt, lost, faults>>

-----------------------------------------------------------------------------
(* The holder *)

Plan(w) ==
    /\ pc[w] = "planning"
    /\ base' = [base EXCEPT ![w] = log]
    /\ IF LookForOwn /\ In(w, log)
       THEN /\ Ends(w, "success", "reporting") /\ UNCHANGED tries
            /\ carried' = [carried EXCEPT ![w] = <<>>]
            /\ Say(w, "table", "reads the table: its append is there already")
       ELSE /\ tries' = [tries EXCEPT ![w] = tries[w] + 1]
            /\ Goes(w, IF tries[w] = 0 THEN "listing" ELSE "ready")
            /\ Say(w, "table", "reads the table and builds on it")
            /\ UNCHANGED <<verdict, carried>>
    /\ UNCHANGED <<service, published, behind, answer, doubt, lost, faults>>

List(w) ==
    /\ pc[w] = "listing"
    /\ behind' = [behind EXCEPT ![w] = IF Holds(w) THEN Tail(queue) ELSE <<>>]
    /\ Goes(w, "taking")
    /\ Say(w, "locks", "lists who is behind it")
    /\ UNCHANGED <<service, published, base, carried, tries, answer, doubt, verdict, lost, faults>>

Read(w) ==
    /\ pc[w] = "taking"
    /\ IF behind[w] = <<>>
       THEN /\ Goes(w, "ready") /\ UNCHANGED behind
            /\ Say(w, w, "has looked at all of them")
       ELSE LET m == Head(behind[w]) IN
            CASE m \in offer /\ mark[m] = NoOne ->
                    /\ Goes(w, "marking") /\ UNCHANGED behind
                    /\ Say(w, "store", "reads the offer of " \o ToString(m))
              [] m \in offer /\ mark[m] # NoOne /\ outcome[m] = "done" ->
                    /\ behind' = [behind EXCEPT ![w] = Tail(behind[w])] /\ UNCHANGED pc
                    /\ Say(w, "store", "finds an offer that was published")
              [] OTHER ->
                    /\ behind' = [behind EXCEPT ![w] = <<>>] /\ UNCHANGED pc
                    /\ Say(w, "store", "finds no offer of " \o ToString(m) \o " to take")
    /\ UNCHANGED <<service, published, base, carried, tries, answer, doubt, verdict, lost, faults>>

Mark(w) ==
    /\ pc[w] = "marking"
    /\ mark' = [mark EXCEPT ![Head(behind[w])] = w]
    /\ Goes(w, "marked")
    /\ Say(w, "store", "marks the offer of " \o ToString(Head(behind[w])))
    /\ UNCHANGED <<log, flying, queue, offer, late, outcome, published, base, behind, carried, tries, answer, doubt,
                   verdict, lost, faults>>

Look(w) ==
    /\ pc[w] = "marked"
    /\ LET m == Head(behind[w])
           takes == SecondLook => m \in offer
       IN /\ carried' = [carried EXCEPT ![w] = IF takes THEN Append(carried[w], m) ELSE carried[w]]
          /\ Say(w, "store", IF ~SecondLook THEN "looks no more" ELSE IF takes THEN "finds it still there: taken"
                             ELSE "finds it gone: not taken")
    /\ behind' = [behind EXCEPT ![w] = Tail(behind[w])]
    /\ Goes(w, "taking")
    /\ UNCHANGED <<service, published, base, tries, answer, doubt, verdict, lost, faults>>

Ensure(w) ==
    /\ pc[w] = "ready"
    /\ IF Holds(w)
       THEN Goes(w, "sure") /\ UNCHANGED <<mark, carried>> /\ Say(w, "locks", "makes sure of its lease")
       ELSE /\ Goes(w, "idle") /\ carried' = [carried EXCEPT ![w] = <<>>]
            /\ mark' = [m \in Writers |-> IF ~ReportsHeld /\ m \in Range(carried[w]) THEN NoOne ELSE mark[m]]
            /\ Say(w, "locks", "makes sure of its lease: it is gone" \o
                               IF ~ReportsHeld THEN ", and returns what it took" ELSE "")
    /\ UNCHANGED <<log, flying, queue, offer, late, outcome, published, base, behind, tries, answer, doubt, verdict,
                   lost, faults>>

WriteFails(w) ==
    /\ pc[w] = "ready" /\ Fault
    /\ Ends(w, IF w \in doubt THEN "unknown" ELSE "failure", "reporting")
    /\ Say(w, w, "can't write its files")
    /\ UNCHANGED <<service, published, base, behind, carried, tries, answer, doubt, lost>>

Swap(w) ==
    /\ pc[w] = "sure"
    /\ flying' = flying \cup {[from |-> w, builds |-> base[w], file |-> File(w)]}
    /\ Goes(w, "sent")
    /\ Say(w, "table", "sends its swap")
    /\ UNCHANGED <<log, queue, files, published, base, behind, carried, tries, answer, doubt, verdict, lost, faults>>

Perform(m) ==
    LET awaited == pc[m.from] = "sent" /\ m.file = File(m.from)
        sets == ~Cas \/ m.builds = log
    IN /\ flying' = flying \ {m}
       /\ IF sets THEN log' = Append(m.builds, m.file) ELSE UNCHANGED log
       /\ answer' = IF awaited THEN [answer EXCEPT ![m.from] = IF sets THEN "swapped" ELSE "moved"] ELSE answer
       /\ Say("table", "table", "carries out the swap of " \o ToString(m.from) \o
                    (IF ~sets THEN ": the pointer has moved, nothing is done" ELSE ""))
       /\ UNCHANGED <<queue, files, pc, published, base, behind, carried, tries, doubt, verdict, lost, faults>>

Refused(w) == IF w \in doubt THEN "unknown" ELSE "failure"
NotSwapped(w) == IF tries[w] < MaxTries THEN Goes(w, "planning") /\ UNCHANGED verdict
                                        ELSE Ends(w, Refused(w), "reporting")

Receive(w) ==
    /\ pc[w] = "sent" /\ answer[w] # "none"
    /\ IF answer[w] = "swapped" THEN Ends(w, "success", "reporting") ELSE NotSwapped(w)
    /\ answer' = [answer EXCEPT ![w] = "none"]
    /\ Say("table", w, "answers: " \o answer[w])
    /\ UNCHANGED <<service, published, base, behind, carried, tries, doubt, lost, faults>>

LoseAnswer(w) ==
    /\ pc[w] = "sent" /\ Fault
    /\ answer' = [answer EXCEPT ![w] = "none"]
    /\ CASE Landed(w) -> Ends(w, "success", "reporting")
         [] ~Landed(w) /\ log # base[w] /\ IsPrefix(base[w], log) -> NotSwapped(w)
         [] OTHER -> Ends(w, "unknown", "reporting")
    /\ Say(w, "table", "gets no answer, and looks at the table")
    /\ UNCHANGED <<service, published, base, behind, carried, tries, doubt, lost>>

Report(w) ==
    /\ pc[w] = "reporting"
    /\ LET said == CASE ReportsHeld /\ ~Holds(w) -> "none"
                     [] verdict[w] = "success" -> "done"
                     [] verdict[w] = "failure" \/ ~OnlyProven -> "returned"
                     [] OTHER -> "none"
           mine == Range(carried[w])
       IN \/ /\ outcome' = [m \in Writers |-> IF m \in mine /\ said = "done" THEN said ELSE outcome[m]]
             /\ mark' = [m \in Writers |-> IF m \in mine /\ said = "returned" THEN NoOne ELSE mark[m]]
             /\ queue' = IF OwnerLeaves \/ said # "done" THEN queue
                         ELSE SelectSeq(queue, LAMBDA other : other \notin Range(carried[w]))
             /\ Say(w, "store", "writes the outcomes: " \o said)
             /\ UNCHANGED faults
          \/ /\ carried[w] # <<>> /\ Fault
             /\ Say(w, "store", "can't write the outcomes")
             /\ UNCHANGED <<outcome, mark, queue>>
    /\ Goes(w, "leaving")
    /\ UNCHANGED <<log, flying, offer, late, published, base, behind, carried, tries, answer, doubt, verdict, lost>>

Leave(w) ==
    /\ pc[w] = "leaving"
    /\ queue' = Without(w)
    /\ offer' = offer \ {w}
    /\ Goes(w, "done")
    /\ Say(w, "locks", "leaves the queue: " \o verdict[w])
    /\ UNCHANGED <<log, flying, late, mark, outcome, published, base, behind, carried, tries, answer, doubt, verdict,
                   lost, faults>>

-----------------------------------------------------------------------------
(* What may happen at any moment *)

Die(w) ==
    /\ pc[w] \notin {"idle", "done", "dead"} /\ Fault
    /\ Goes(w, "dead")
    /\ Say(w, w, "dies")
    /\ UNCHANGED <<service, published, base, behind, carried, tries, answer, doubt, verdict, lost>>

Expire(w) ==
    /\ w \in Range(queue)
    /\ IF pc[w] \in {"dead", "done"} THEN UNCHANGED faults ELSE Fault
    /\ queue' = Without(w)
    /\ lost' = lost \cup {w}
    /\ Say("locks", "locks", "the lease of " \o ToString(w) \o " runs out")
    /\ UNCHANGED <<log, flying, files, pc, published, base, behind, carried, tries, answer, doubt, verdict>>

-----------------------------------------------------------------------------

Step(w) == \/ Enter(w) \/ Publish(w) \/ Arrive(w) \/ SeeOutcome(w) \/ Granted(w) \/ Retract1(w) \/ Retract2(w)
           \/ GiveUp(w) \/ Plan(w) \/ List(w) \/ Read(w) \/ Mark(w) \/ Look(w) \/ Ensure(w) \/ Swap(w) \/ Receive(w)
           \/ Report(w) \/ Leave(w)
Trouble(w) == TimeOut(w) \/ WriteFails(w) \/ LoseAnswer(w) \/ Die(w) \/ Expire(w)

Finished == queue = <<>> /\ (\A w \in Writers : pc[w] \in {"done", "dead"}) /\ UNCHANGED vars

Next == (\E w \in Writers : Step(w) \/ Trouble(w)) \/ (\E m \in flying : Perform(m)) \/ Finished

Spec == Init /\ [][Next]_vars /\ WF_vars(Next)

-----------------------------------------------------------------------------
(* What is promised *)

Said(w, what) == verdict[w] = what /\ pc[w] \in {"reporting", "leaving", "done", "dead"}

\* An acknowledged append is in the table.
AcknowledgedStays == \A w \in Writers : Said(w, "success") => In(w, log)
\* No append is in the table twice, whatever its writer was told.
NoneTwice == \A w \in Writers : Cardinality(Adds(w, log)) <= 1
\* A refused append is not in the table: its files may be deleted.
RefusedNever == \A w \in Writers : Said(w, "failure") => ~In(w, log)
\* Nobody but its owner takes a request out of the queue, unless its lease has run out.
LatchIsKept == \A w \in Writers :
    pc[w] \in {"planning", "listing", "taking", "marking", "marked", "ready"} => w \in Range(queue) \cup lost
\* The parent of each head is the head before it.
Unbroken == [][IsPrefix(log, log') /\ Len(log') <= Len(log) + 1]_log

Alike == Permutations(Writers)
=============================================================================

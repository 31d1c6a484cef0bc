-------------------------------- MODULE Rest --------------------------------
(***************************************************************************)
(* Clients of the REST server, to be read beside                           *)
(* commit_coord/catalog/requested.py, catalog/sent_before.py,              *)
(* protocol/turns.py and rest/idempotency.py.                              *)
(*                                                                         *)
(* Every client has one commit. It reads the table, sends the commit to    *)
(* one of the servers, and waits for the answer. A request may be delayed  *)
(* for as long as the run lasts: it then arrives after its client has      *)
(* given up, has sent it again, or has been replaced. A server may die at  *)
(* any moment, above all between its swap and its answer.                  *)
(*                                                                         *)
(* What a server does under the latch is one step here. Commit.tla shows   *)
(* that this is right: a commit lands once, was refused, or is unknown,    *)
(* and what is unknown may land as long as nobody else has.                *)
(*                                                                         *)
(* The table is its log. It only grows, so its length names its head.      *)
(***************************************************************************)
EXTENDS Naturals, Sequences, FiniteSets, TLC

CONSTANTS
    Clients,      \* Who commits.
    Servers,      \* Processes that serve the table.
    NoOne,        \* For whom a table is kept free, where it is kept free for nobody.
    Declared,     \* Clients whose commit is an append that is declared blind.
    Silent,       \* Clients whose commit adds no snapshot and requires nothing, such as a change of a property.
    Keyed,        \* Clients that send an Idempotency-Key. They send a request again that was not answered.
    Stream,       \* Instances of one stream; all of them have the same checkpoint to commit.
    MaxFaults,    \* Lost answers, deaths, latch timeouts, clients that do not come back: so many in all.
    Telling,      \* Whether "told" says what happened, for the pictures.
    \* The guards. All TRUE is the protocol; each variant takes one away.
    IdFirst,      \* A commit whose snapshot is in the table has landed.
    KeyFirst,     \* So has a commit whose key is in the table's history.
    InLatch,      \* That is looked up under the latch too, and not only before.
    LookAgain,    \* And once more before a commit is refused.
    OnlyDeclared, \* Only what is declared blind follows a head that moved.
    Checkpoints,  \* A stream's commit is refused when the table has its checkpoint.
    LatchIsNoProof,  \* A commit with a key that was not granted the latch is not refused: its first try may land.
    UnknownIsTold,   \* An unknown outcome is answered 500, and not 409.
    ArrivesOnce,  \* No network delivers a request without a key twice; only its client could send it again.
    Turns,        \* A table is kept free for a client that was refused.
    TurnsEnd,     \* But only for a while.
    TurnsWait     \* And a refusal is told when no other commit runs.

VARIABLES
    log,        \* The table: commits, as records of who and saw.
    flying,     \* Swaps whose answer was lost and that were not carried out yet: records of who, saw, base.
    net,        \* Requests under way: records of who, copy, saw, twin.
    jobs,       \* Requests at a server: the same with at, st (how far it has come) and first (it runs in its turn).
    reserved,   \* For whom each server keeps the table free.
    pc,         \* Where each client is: "idle", "asking", or how its commit ended.
    saw,        \* The head that it has read.
    copy,       \* How many requests it has sent; it waits for the answer to the last one.
    doubled,    \* Clients of which a network has doubled a request.
    faults,     \* Left to happen.
    told        \* The last step in words: from, to, what. No part of the state (see View).

client == <<pc, saw, copy>>
server == <<jobs, reserved>>
table == <<log, flying>>
View == <<table, net, server, client, doubled, faults>>
vars == <<table, net, server, client, doubled, faults, told>>

-----------------------------------------------------------------------------

Say(from, to, what) == told' = IF Telling THEN <<from, to, what>> ELSE <<>>
Fault == faults > 0 /\ faults' = faults - 1

Ended == {"success", "refused", "unknown"}
Same(c, d) == c = d \/ (c \in Stream /\ d \in Stream)  \* They commit the same rows.
Entries(c) == {i \in 1..Len(log) : log[i].who = c}
Rows(c) == {i \in 1..Len(log) : Same(log[i].who, c)}
Late(c) == c \in Stream /\ Rows(c) # {}

\* What the server finds of an earlier try.
Known(c) == Entries(c) # {} /\ ((IdFirst /\ c \notin Silent) \/ (KeyFirst /\ c \in Keyed))

Moves(j, changes) == jobs' = (jobs \ {j}) \cup {changes}
At(s) == {j \in jobs : j.at = s}
Free(s) == reserved[s] = NoOne /\ ~\E j \in At(s) : j.first
Runs(j) == j.st \notin {"queued", "held"}

Init ==
    /\ log = <<>> /\ flying = {} /\ net = {} /\ jobs = {}
    /\ reserved = [s \in Servers |-> NoOne]
    /\ pc = [c \in Clients |-> "idle"]
    /\ saw = [c \in Clients |-> 0]
    /\ copy = [c \in Clients |-> 0]
    /\ doubled = {}
    /\ faults = MaxFaults
    /\ told = <<>>

-----------------------------------------------------------------------------
(* Clients *)

Sends(c, head) ==
    /\ net' = net \cup {[who |-> c, copy |-> copy[c] + 1, saw |-> head, twin |-> FALSE]}
    /\ copy' = [copy EXCEPT ![c] = copy[c] + 1]
    /\ saw' = [saw EXCEPT ![c] = head]
    /\ pc' = [pc EXCEPT ![c] = "asking"]

Ends(c, how) == pc' = [pc EXCEPT ![c] = how] /\ UNCHANGED <<net, copy, saw>>

Ask(c) ==
    /\ pc[c] = "idle"
    /\ IF Late(c)
       THEN /\ Ends(c, "success")
            /\ Say(c, "table", "reads the table: its checkpoint is there")
       ELSE /\ Sends(c, Len(log))
            /\ Say(c, "table", IF copy[c] = 0 THEN "reads the table, and sends its commit"
                                              ELSE "reads the table again, and sends its commit")
    /\ UNCHANGED <<table, server, doubled, faults>>

\* A client with a key sends the same again. One without does not know what became of its commit.
Again(c) == IF c \in Keyed THEN Sends(c, saw[c]) ELSE Ends(c, "unknown")

Awaited(m) == pc[m.who] = "asking" /\ m.copy = copy[m.who]

NoAnswer(c) ==
    /\ pc[c] = "asking"
    /\ IF \E m \in net \cup jobs : m.who = c /\ Awaited(m) THEN Fault ELSE UNCHANGED faults
    /\ Again(c)
    /\ Say(c, c, IF c \in Keyed THEN "gets no answer, and sends the same again" ELSE "gets no answer")
    /\ UNCHANGED <<table, server, doubled>>

-----------------------------------------------------------------------------
(* The network *)

Deliver(m, s) ==
    LET turn == reserved[s] = m.who
    IN /\ net' = net \ {m}
       /\ jobs' = jobs \cup {[who |-> m.who, copy |-> m.copy, saw |-> m.saw, twin |-> m.twin, at |-> s,
                              st |-> "queued", first |-> turn]}
       /\ reserved' = IF turn THEN [reserved EXCEPT ![s] = NoOne] ELSE reserved
       /\ Say(m.who, s, IF turn THEN "its request arrives, in its turn" ELSE "its request arrives")
       /\ UNCHANGED <<table, client, doubled, faults>>

Double(m) ==
    /\ m.who \notin Keyed /\ ~m.twin /\ m.who \notin doubled /\ Fault
    /\ net' = net \cup {[m EXCEPT !.twin = TRUE]}
    /\ doubled' = doubled \cup {m.who}
    /\ Say(m.who, m.who, "its request is doubled on the way")
    /\ UNCHANGED <<table, server, client>>

-----------------------------------------------------------------------------
(* Servers *)

\* What an answer does to its client, if that still waits for it.
Receives(c, code) ==
    CASE code = "200" -> Ends(c, "success") /\ UNCHANGED faults
      [] code \in {"500", "503"} -> Again(c) /\ UNCHANGED faults
      [] code = "409 for good" -> Ends(c, "refused") /\ UNCHANGED faults
      [] code = "409" -> \/ Ends(c, "idle") /\ UNCHANGED faults
                         \/ Ends(c, "refused") /\ Fault  \* It deletes its files, and does not come back.

Answers(j, code, why) ==
    /\ jobs' = jobs \ {j}
    /\ IF Awaited(j) THEN Receives(j.who, code) ELSE UNCHANGED <<net, client, faults>>
    /\ Say(j.at, j.who, why \o "answers " \o code \o (IF Awaited(j) THEN "" ELSE ", and nobody waits for it"))

\* It waits while the table is kept free for somebody else; not for ever.
Begin(j) ==
    /\ j.st = "queued"
    /\ IF j.first \/ Free(j.at) THEN UNCHANGED faults ELSE Fault
    /\ Moves(j, [j EXCEPT !.st = IF Known(j.who) THEN "done" ELSE "ready"])
    /\ Say(j.at, "table", IF Known(j.who) THEN "finds that the commit of " \o ToString(j.who) \o " has landed before"
                                          ELSE "does not find the commit of " \o ToString(j.who))
    /\ UNCHANGED <<table, net, reserved, client, doubled>>

Follows(j) == j.who \in Declared \cup Silent \/ ~OnlyDeclared \/ j.saw = Len(log)

\* Under the latch.
Land(j) ==
    /\ j.st = "ready"
    /\ IF (InLatch /\ Known(j.who)) \/ (Checkpoints /\ Late(j.who)) \/ ~Follows(j)
       THEN /\ Moves(j, [j EXCEPT !.st = "refused"])
            /\ Say(j.at, "table", "can't land the commit of " \o ToString(j.who))
            /\ UNCHANGED <<table, faults>>
       ELSE \/ /\ log' = Append(log, [who |-> j.who, saw |-> j.saw])
               /\ Moves(j, [j EXCEPT !.st = "done"])
               /\ Say(j.at, "table", "lands the commit of " \o ToString(j.who))
               /\ UNCHANGED <<flying, faults>>
            \/ /\ Fault
               /\ flying' = flying \cup {[who |-> j.who, saw |-> j.saw, base |-> Len(log)]}
               /\ Moves(j, [j EXCEPT !.st = "unknown"])
               /\ Say(j.at, "table", "sends the swap of " \o ToString(j.who) \o ", and gets no answer")
               /\ UNCHANGED log
    /\ UNCHANGED <<net, reserved, client, doubled>>

Perform(f) ==
    /\ flying' = flying \ {f}
    /\ log' = IF f.base = Len(log) THEN Append(log, [who |-> f.who, saw |-> f.saw]) ELSE log
    /\ Say("table", "table", "carries out the swap of " \o ToString(f.who) \o
                (IF f.base = Len(log) THEN "" ELSE ": the head has moved, nothing is done"))
    /\ UNCHANGED <<net, server, client, doubled, faults>>

\* Another holder keeps the latch for too long.
TimeOut(j) ==
    /\ j.st = "ready" /\ Fault
    /\ j.who \in doubled => ~ArrivesOnce
    /\ Moves(j, [j EXCEPT !.st = IF j.who \in Keyed /\ LatchIsNoProof THEN "busy" ELSE "denied"])
    /\ Say(j.at, j.at, "is not granted the latch for " \o ToString(j.who))
    /\ UNCHANGED <<table, net, reserved, client, doubled>>

\* The last look. What a retry can't help is said at once; else the client is told when it may come back and go first.
Judge(j) ==
    /\ j.st \in {"refused", "denied"}
    /\ LET found == LookAgain /\ Known(j.who)
       IN IF Turns /\ j.st = "refused" /\ ~found /\ ~Late(j.who)
          THEN /\ Moves(j, [j EXCEPT !.st = "held", !.first = FALSE])
               /\ Say(j.at, j.at, "refuses the commit of " \o ToString(j.who) \o ", and does not say so yet")
               /\ UNCHANGED <<net, client, faults>>
          ELSE Answers(j, IF found THEN "200" ELSE IF Late(j.who) THEN "409 for good" ELSE "409",
                       IF found THEN "looks again, finds the commit, and " ELSE "")
    /\ UNCHANGED <<table, reserved, doubled>>

Answer(j) ==
    /\ j.st \in {"done", "unknown", "busy"}
    /\ Answers(j, CASE j.st = "done" -> "200"
                    [] j.st = "busy" -> "503"
                    [] OTHER -> IF UnknownIsTold THEN "500" ELSE "409 for good", "")
    /\ UNCHANGED <<table, reserved, doubled>>

Tell(j) ==
    /\ j.st = "held" /\ Free(j.at)
    /\ TurnsWait => ~\E other \in At(j.at) : Runs(other)
    /\ reserved' = [reserved EXCEPT ![j.at] = j.who]
    /\ Answers(j, "409", "keeps the table free for it, and ")
    /\ UNCHANGED <<table, doubled>>

\* The client does not come in time, or not at all.
Comes(c) == pc[c] = "idle" \/ \E m \in net : m.who = c

EndTurn(s) ==
    /\ TurnsEnd /\ reserved[s] # NoOne
    /\ IF Comes(reserved[s]) THEN Fault ELSE UNCHANGED faults
    /\ reserved' = [reserved EXCEPT ![s] = NoOne]
    /\ Say(s, s, "keeps the table free no longer")
    /\ UNCHANGED <<table, net, jobs, client, doubled>>

Die(s) ==
    /\ At(s) # {} /\ Fault
    /\ jobs' = jobs \ At(s)
    /\ reserved' = [reserved EXCEPT ![s] = NoOne]
    /\ Say(s, s, "dies, and is started again")
    /\ UNCHANGED <<table, net, client, doubled>>

-----------------------------------------------------------------------------

\* All clients have ended, and no server waits for one. Any other state without a next one is a deadlock.
AtRest == (\A c \in Clients : pc[c] \in Ended) /\ jobs = {} /\ (\A s \in Servers : reserved[s] = NoOne)
Finished == AtRest /\ net = {} /\ flying = {} /\ UNCHANGED vars

Next == \/ \E c \in Clients : Ask(c) \/ NoAnswer(c)
        \/ \E m \in net : Double(m) \/ \E s \in Servers : Deliver(m, s)
        \/ \E j \in jobs : Begin(j) \/ Land(j) \/ TimeOut(j) \/ Judge(j) \/ Answer(j) \/ Tell(j)
        \/ \E f \in flying : Perform(f)
        \/ \E s \in Servers : EndTurn(s) \/ Die(s)
        \/ Finished

Spec == Init /\ [][Next]_vars /\ WF_vars(Next)

-----------------------------------------------------------------------------
(* What is promised *)

\* An acknowledged commit is in the table.
AcknowledgedStays == \A c \in Clients : pc[c] = "success" => Rows(c) # {}
\* No commit is in the table twice, nor is what several instances of a stream commit.
NoneTwice == \A c \in Clients : Cardinality(Rows(c)) <= 1
\* A commit that was refused, and whose client does not come back, is not in the table.
RefusedNever == \A c \in Clients : pc[c] = "refused" => Entries(c) = {}
\* A commit that is not declared blind lands on the head that its client has read.
OnWhatWasRead == \A i \in 1..Len(log) : log[i].who \notin Declared \cup Silent => log[i].saw = i - 1
\* Where one server serves the table and nothing goes wrong, a client is refused once at most.
OneRetry == Cardinality(Servers) = 1 /\ MaxFaults = 0 => \A c \in Clients : copy[c] <= 2
\* In the end every client has its answer, and the table is kept free for nobody.
FreeInTheEnd == <>[]AtRest

Plain == Clients \ (Declared \cup Silent \cup Keyed \cup Stream)
Alike == Permutations(Servers) \cup Permutations(Plain) \cup Permutations(Stream)
=============================================================================

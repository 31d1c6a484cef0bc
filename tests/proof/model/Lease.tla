-------------------------------- MODULE Lease --------------------------------
(***************************************************************************)
(* What a holder may believe about its lease, to be read beside            *)
(* commit_coord/protocol/lease.py and locks/keeping.py.                    *)
(*                                                                         *)
(* One holder renews its lease at a service, which gives the lock to       *)
(* another client when it ran out. Requests and answers take their time;   *)
(* the holder's machine may be suspended. Both clocks run at one speed.    *)
(***************************************************************************)
EXTENDS Naturals, TLC

CONSTANTS
    Lease,           \* How long the service keeps the lease after a renewal.
    End,             \* When the model stops.
    Telling,
    \* The guards.
    FromSending,     \* The holder counts from when it sent the renewal, not from when it got the answer.
    ThroughSuspend   \* Its clock goes on while the machine is suspended.

VARIABLES
    now,       \* The time.
    mine,      \* The holder's clock.
    asleep,    \* The holder's machine is suspended.
    word,      \* By its own clock: from when it counts its lease.
    asked,     \* The renewal that is under way: when it was sent, by the holder's clock; 99: none.
    answered,  \* The answer that is under way to one sent then; 99: none.
    until,     \* The service keeps the lease until then.
    given,     \* It has given the lock to another client.
    told

View == <<now, mine, asleep, word, asked, answered, until, given>>
vars == <<View, told>>

Say(from, to, what) == told' = IF Telling THEN <<from, to, what>> ELSE <<>>
None == 99

Init ==
    /\ now = 0 /\ mine = 0 /\ asleep = FALSE /\ word = 0 /\ asked = None /\ answered = None
    /\ until = Lease /\ given = FALSE /\ told = <<>>

Believes == ~asleep /\ mine - word < Lease /\ mine >= word

Tick ==
    /\ now < End
    /\ now' = now + 1
    /\ mine' = IF asleep /\ ~ThroughSuspend THEN mine ELSE mine + 1
    /\ Say("locks", "locks", "a second passes")
    /\ UNCHANGED <<asleep, word, asked, answered, until, given>>

Suspend ==
    /\ ~asleep /\ asleep' = TRUE
    /\ Say("holder", "holder", "the machine is suspended")
    /\ UNCHANGED <<now, mine, word, asked, answered, until, given>>

Wake ==
    /\ asleep /\ asleep' = FALSE
    /\ Say("holder", "holder", "the machine wakes up")
    /\ UNCHANGED <<now, mine, word, asked, answered, until, given>>

Renew ==  \* Only while it believes in its lease: LOST is final.
    /\ Believes /\ asked = None /\ answered = None
    /\ asked' = mine
    /\ Say("holder", "locks", "sends a renewal")
    /\ UNCHANGED <<now, mine, asleep, word, answered, until, given>>

Receive ==  \* The service gets it, in time or not.
    /\ asked # None
    /\ IF given THEN UNCHANGED <<until, answered>> ELSE until' = now + Lease /\ answered' = asked
    /\ asked' = None
    /\ Say("locks", "locks", IF given THEN "gets the renewal, too late" ELSE "gets the renewal, and counts from now")
    /\ UNCHANGED <<now, mine, asleep, word, given>>

Confirm ==
    /\ answered # None /\ Believes
    /\ word' = IF FromSending THEN answered ELSE mine
    /\ answered' = None
    /\ Say("locks", "holder", IF FromSending THEN "confirms it as of its sending" ELSE "confirms it as of now")
    /\ UNCHANGED <<now, mine, asleep, asked, until, given>>

Give ==
    /\ ~given /\ now >= until
    /\ given' = TRUE
    /\ Say("locks", "other", "the lease has run out: the lock is yours")
    /\ UNCHANGED <<now, mine, asleep, word, asked, answered, until>>

Next == Tick \/ Suspend \/ Wake \/ Renew \/ Receive \/ Confirm \/ Give
Spec == Init /\ [][Next]_vars

\* A holder that believes in its lease has it: it finds itself LOST before anybody else is granted the lock.
BeliefIsTrue == Believes => ~given
=============================================================================

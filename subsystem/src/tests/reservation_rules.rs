//! The rules of reservations.

use super::*;

const A: Host = [1; 16];
const B: Host = [2; 16];
const C: Host = [3; 16];
const TYPES: [ReservationType; 6] = [
    ReservationType::WRITE_EXCLUSIVE,
    ReservationType::EXCLUSIVE_ACCESS,
    ReservationType::WRITE_EXCLUSIVE_REGISTRANTS_ONLY,
    ReservationType::EXCLUSIVE_ACCESS_REGISTRANTS_ONLY,
    ReservationType::WRITE_EXCLUSIVE_ALL_REGISTRANTS,
    ReservationType::EXCLUSIVE_ACCESS_ALL_REGISTRANTS,
];

fn register(
    reservation: &mut Reservation,
    host: Host,
    action: RegisterAction,
    keys: (u64, u64),
) -> Result<Effects, Status> {
    let command = ReservationRegister {
        nsid: 1,
        action,
        ignore_existing_key: false,
        change_ptpl: ChangePtpl::NoChange,
    };
    let data = RegisterData {
        crkey: keys.0.into(),
        nrkey: keys.1.into(),
    };
    reservation
        .register(host, &command, &data)
        .map_err(|error| error.status)
}

fn acquire(
    reservation: &mut Reservation,
    host: Host,
    action: AcquireAction,
    rtype: ReservationType,
    keys: (u64, u64),
) -> Result<Effects, Status> {
    let command = ReservationAcquire {
        nsid: 1,
        action,
        ignore_existing_key: false,
        reservation_type: rtype,
    };
    let data = AcquireData {
        crkey: keys.0.into(),
        prkey: keys.1.into(),
    };
    reservation
        .acquire(host, &command, &data)
        .map_err(|error| error.status)
}

fn release(
    reservation: &mut Reservation,
    host: Host,
    action: ReleaseAction,
    rtype: ReservationType,
    key: u64,
) -> Result<Effects, Status> {
    let command = ReservationRelease {
        nsid: 1,
        action,
        ignore_existing_key: false,
        reservation_type: rtype,
    };
    let data = ReleaseData { crkey: key.into() };
    reservation
        .release(host, &command, &data)
        .map_err(|error| error.status)
}

/// A with key 0xA and B with key 0xB are registered, and A holds the namespace.
fn held(rtype: ReservationType) -> Reservation {
    let mut reservation = Reservation::default();
    for (host, key) in [(A, 0xA), (B, 0xB)] {
        register(&mut reservation, host, RegisterAction::Register, (0, key)).unwrap();
    }
    acquire(&mut reservation, A, AcquireAction::Acquire, rtype, (0xA, 0)).unwrap();
    reservation
}

const CONFLICT: Result<Effects, Status> = Err(Status::RESERVATION_CONFLICT.dnr());

#[test]
fn each_type_lets_each_kind_of_host_do_what_the_table_says() {
    let open = Closed::default();
    let no_write = Closed::RESERVED_FOR_WRITE;
    let nothing = no_write.with(Closed::RESERVED_FOR_READ, true);
    // Holder, registrant, stranger.
    let expected = [
        [open, no_write, no_write],
        [open, nothing, nothing],
        [open, open, no_write],
        [open, open, nothing],
        [open, open, no_write],
        [open, open, nothing],
    ];
    for (rtype, expected) in TYPES.into_iter().zip(expected) {
        let reservation = held(rtype);
        let actual = [A, B, C].map(|host| reservation.closed_for(&host));
        assert_eq!(actual, expected, "{rtype}");
    }
    assert_eq!(Reservation::default().closed_for(&C), open);
}

#[test]
fn registering_follows_the_keys() {
    use RegisterAction::{Register, Replace, Unregister};
    let mut reservation = Reservation::default();
    let none = Ok(Effects::default());
    let steps = [
        (Unregister, (0, 0), CONFLICT),
        (Replace, (0, 5), CONFLICT),
        (Register, (9, 5), none),
        (Register, (0, 5), Ok(Effects::default())),
        (Register, (5, 6), CONFLICT),
        (Replace, (4, 6), CONFLICT),
        (Replace, (5, 6), Ok(Effects::default())),
        (Unregister, (5, 0), CONFLICT),
        (Unregister, (6, 0), Ok(Effects::default())),
    ];
    for (action, keys, expected) in steps {
        assert_eq!(
            register(&mut reservation, A, action, keys),
            expected,
            "{action:?} {keys:?}"
        );
    }
    assert_eq!(reservation.generation(), 4);
}

#[test]
fn a_key_is_replaced_whether_or_not_there_is_one() {
    let mut reservation = Reservation::default();
    let replace = ReservationRegister {
        nsid: 1,
        action: RegisterAction::Replace,
        ignore_existing_key: true,
        change_ptpl: ChangePtpl::NoChange,
    };
    for key in [5, 6] {
        let data = RegisterData {
            crkey: 9.into(),
            nrkey: key.into(),
        };
        reservation.register(A, &replace, &data).unwrap();
        assert_eq!(reservation.registrants().next(), Some((&A, key)));
    }
    let unregister = ReservationRegister {
        action: RegisterAction::Unregister,
        ..replace
    };
    let data = RegisterData {
        crkey: 9.into(),
        nrkey: 0.into(),
    };
    reservation.register(A, &unregister, &data).unwrap();
    let error = reservation.register(A, &unregister, &data).unwrap_err();
    assert_eq!(error.status, Status::RESERVATION_CONFLICT.dnr());
}

#[test]
fn registrants_are_bounded() {
    let mut reservation = Reservation::default();
    for number in 0..u8::try_from(REGISTRANTS_MAX).unwrap() {
        let host = [number; 16];
        register(&mut reservation, host, RegisterAction::Register, (0, 1)).unwrap();
    }
    assert_eq!(
        register(
            &mut reservation,
            [255; 16],
            RegisterAction::Register,
            (0, 1)
        ),
        Err(Status::INSUFFICIENT_RESOURCES)
    );
}

#[test]
fn one_host_acquires_and_others_conflict() {
    for rtype in TYPES {
        let mut reservation = held(rtype);
        let again = acquire(&mut reservation, A, AcquireAction::Acquire, rtype, (0xA, 0));
        assert_eq!(again, Ok(Effects::default()));
        let other = acquire(&mut reservation, B, AcquireAction::Acquire, rtype, (0xB, 0));
        assert_eq!(other.is_ok(), is_all_registrants(rtype));
        let wrong = acquire(&mut reservation, A, AcquireAction::Acquire, rtype, (0xB, 0));
        assert_eq!(wrong, CONFLICT);
        let stranger = acquire(&mut reservation, C, AcquireAction::Acquire, rtype, (0, 0));
        assert_eq!(stranger, CONFLICT);
    }
}

#[test]
fn a_release_is_told_to_registrants_it_matters_to() {
    for rtype in TYPES {
        let mut reservation = held(rtype);
        let other_type = if rtype == TYPES[0] {
            TYPES[1]
        } else {
            TYPES[0]
        };
        assert_eq!(
            release(&mut reservation, A, ReleaseAction::Release, other_type, 0xA),
            Err(Status::INVALID_FIELD.dnr())
        );
        if !is_all_registrants(rtype) {
            let bystander = release(&mut reservation, B, ReleaseAction::Release, rtype, 0xB);
            assert_eq!(bystander, Ok(Effects::default()));
            assert_eq!(reservation.rtype(), rtype);
        }
        let effects = release(&mut reservation, A, ReleaseAction::Release, rtype, 0xA).unwrap();
        let told = [(B, Notification::RESERVATION_RELEASED)];
        let told = if is_shared(rtype) { &told[..] } else { &[] };
        assert_eq!(effects.notifications, told, "{rtype}");
        assert_eq!(reservation.rtype(), ReservationType::NONE);
        assert_eq!(reservation.registrants().len(), 2);
    }
}

#[test]
fn the_holder_leaving_releases_unless_all_are_holders() {
    for rtype in TYPES {
        let mut reservation = held(rtype);
        register(&mut reservation, A, RegisterAction::Unregister, (0xA, 0)).unwrap();
        let stays = is_all_registrants(rtype);
        assert_eq!(reservation.rtype() == rtype, stays, "{rtype}");
        assert!(!reservation.is_holder(&A), "{rtype}");
        assert_eq!(reservation.is_holder(&B), stays, "{rtype}");
        // Whoever left is a stranger, also of a reservation that it acquired.
        assert_eq!(
            reservation.closed_for(&A),
            reservation.closed_for(&C),
            "{rtype}"
        );
        register(&mut reservation, B, RegisterAction::Unregister, (0xB, 0)).unwrap();
        assert_eq!(reservation.rtype(), ReservationType::NONE);
    }
}

#[test]
fn clearing_removes_everything_and_tells_everybody() {
    let mut reservation = held(ReservationType::WRITE_EXCLUSIVE);
    let none = ReservationType::NONE;
    assert_eq!(
        release(&mut reservation, C, ReleaseAction::Clear, none, 0),
        CONFLICT
    );
    let effects = release(&mut reservation, B, ReleaseAction::Clear, none, 0xB).unwrap();
    assert_eq!(
        effects.notifications,
        [(A, Notification::RESERVATION_PREEMPTED)]
    );
    assert_eq!(
        (reservation.registrants().len(), reservation.rtype()),
        (0, none)
    );
}

#[test]
fn preempting_the_holder_takes_the_reservation() {
    let exclusive = ReservationType::EXCLUSIVE_ACCESS;
    let mut reservation = held(ReservationType::WRITE_EXCLUSIVE_REGISTRANTS_ONLY);
    register(&mut reservation, C, RegisterAction::Register, (0, 0xC)).unwrap();
    let preempt = AcquireAction::Preempt;
    let effects = acquire(&mut reservation, B, preempt, exclusive, (0xB, 0xA)).unwrap();
    assert_eq!(effects.preempted, [A]);
    assert_eq!(
        effects.notifications,
        [
            (A, Notification::REGISTRATION_PREEMPTED),
            (C, Notification::RESERVATION_RELEASED)
        ]
    );
    assert!(reservation.is_holder(&B) && !reservation.is_holder(&A));
    assert_eq!(reservation.rtype(), exclusive);
}

#[test]
fn preempting_others_only_unregisters_them() {
    let rtype = ReservationType::WRITE_EXCLUSIVE;
    let mut reservation = held(rtype);
    let preempt = AcquireAction::Preempt;
    let effects = acquire(&mut reservation, A, preempt, TYPES[1], (0xA, 0xB)).unwrap();
    assert_eq!(effects.preempted, [B]);
    assert_eq!(
        (reservation.rtype(), reservation.is_holder(&A)),
        (rtype, true)
    );
    assert_eq!(
        acquire(&mut reservation, A, preempt, rtype, (0xA, 0xB)),
        CONFLICT
    );
    assert_eq!(
        acquire(&mut reservation, A, preempt, rtype, (0xA, 0)),
        Err(Status::INVALID_FIELD.dnr())
    );
    // A host that names its own key leaves, and nobody else.
    register(&mut reservation, B, RegisterAction::Register, (0, 0xB)).unwrap();
    let left = acquire(&mut reservation, B, preempt, rtype, (0xB, 0xB)).unwrap();
    assert_eq!(left, Effects::default());
    assert_eq!(reservation.registrants().len(), 1);
    // The holder preempts itself to change the type.
    acquire(&mut reservation, A, preempt, TYPES[3], (0xA, 0xA)).unwrap();
    assert_eq!(
        (reservation.rtype(), reservation.is_holder(&A)),
        (TYPES[3], true)
    );
}

#[test]
fn an_all_registrants_reservation_is_taken_with_key_zero() {
    let mut reservation = held(ReservationType::EXCLUSIVE_ACCESS_ALL_REGISTRANTS);
    register(&mut reservation, C, RegisterAction::Register, (0, 0xC)).unwrap();
    let preempt = AcquireAction::Preempt;
    let one = acquire(&mut reservation, A, preempt, TYPES[0], (0xA, 0xC)).unwrap();
    assert_eq!(one.preempted, [C]);
    assert_eq!(
        reservation.rtype(),
        ReservationType::EXCLUSIVE_ACCESS_ALL_REGISTRANTS
    );
    let all = acquire(&mut reservation, B, preempt, TYPES[0], (0xB, 0)).unwrap();
    assert_eq!(all.preempted, [A]);
    assert_eq!(
        (reservation.rtype(), reservation.is_holder(&B)),
        (TYPES[0], true)
    );
}

#[test]
fn what_is_not_offered_is_refused() {
    let mut reservation = held(TYPES[0]);
    let register = ReservationRegister {
        nsid: 1,
        action: RegisterAction::Register,
        ignore_existing_key: false,
        change_ptpl: ChangePtpl::Set,
    };
    let data = RegisterData {
        crkey: 0.into(),
        nrkey: 1.into(),
    };
    let error = reservation.register(C, &register, &data).unwrap_err();
    assert_eq!(error.status, Status::INVALID_FIELD.dnr());
    let acquire = ReservationAcquire {
        nsid: 1,
        action: AcquireAction::Acquire,
        ignore_existing_key: true,
        reservation_type: TYPES[0],
    };
    let data = AcquireData {
        crkey: 0xA.into(),
        prkey: 0.into(),
    };
    let error = reservation.acquire(A, &acquire, &data).unwrap_err();
    assert_eq!(error.status, Status::INVALID_FIELD.dnr());
    let error = host_of(HostId::NONE).unwrap_err();
    assert_eq!(error.status, Status::HOST_IDENTIFIER_NOT_INITIALIZED.dnr());
}

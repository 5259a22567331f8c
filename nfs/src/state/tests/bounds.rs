//! What peers can make grow.

use super::*;

#[test]
fn a_client_that_opens_too_many_files_is_told_to_wait_and_others_go_on() {
    let mut server = Server::with(Config::new().with_opens_max(1000));
    let (greedy, other) = (server.host(1), server.host(2));
    let key = |number: usize| FileKey::new(1, &number.to_be_bytes()).unwrap();
    let open = |server: &mut Server, host: &Host, number| {
        let shares = (Shares::READ, Shares::NONE);
        let owner = b"open id";
        let (client, file) = (host.client, &key(number));
        let (access, deny) = shares;
        let request = OpenRequest {
            client,
            owner,
            file,
            access,
            deny,
            is_reclaim: false,
        };
        server.state.open(&request, server.now_us)
    };
    let mut opened = Vec::new();
    let refused = loop {
        match open(&mut server, &greedy, opened.len()) {
            Ok(open) => opened.push(open),
            Err(status) => break status,
        }
    };
    assert_eq!((refused, opened.len()), (Status::DELAY, 750));
    for number in 0..100 {
        open(&mut server, &other, number).unwrap();
    }
    assert_eq!(open(&mut server, &greedy, 5000), Err(Status::DELAY));
    // What it has it may widen, and what it closes it may open again.
    assert!(open(&mut server, &greedy, 0).is_ok());
    for (number, open) in opened.iter().enumerate().skip(1).take(200) {
        server
            .state
            .close(greedy.client, &key(number), open.stateid)
            .unwrap();
    }
    assert!(open(&mut server, &greedy, 5000).is_ok());
    server.settle();
}

#[test]
fn memory_for_state_is_bounded_by_bytes() {
    let mut server = Server::with(Config::new().with_bytes_max(1 << 20));
    let host = server.host(1);
    let mut count = 0_u32;
    let long = [b'o'; 1024];
    let refused = loop {
        let file = FileKey::new(1, &count.to_be_bytes()).unwrap();
        let shares = (Shares::READ, Shares::NONE);
        match server.try_open_as(&host, &long, &file, shares, false) {
            Ok(_) => count += 1,
            Err(status) => break status,
        }
    };
    assert_eq!(refused, Status::DELAY);
    assert!((200..500).contains(&count), "{count} of some 2 KiB");
    assert!(server.state.bytes_used() <= 3 << 18);
    let opens = server.state.opens.used();
    assert_eq!(
        opens,
        u64::from(count),
        "nothing is taken for what was refused"
    );
    let other = server.host(2);
    server.open(&other, &file(1));
}

#[test]
fn clients_whose_leases_expired_make_room() {
    let mut server = Server::with(Config::new().with_opens_max(8));
    let (first, second, third) = (server.host(1), server.host(2), server.host(3));
    for number in 0..4 {
        server.open(&first, &file(number));
    }
    server.wait_us(1);
    for number in 0..3 {
        server.renew(&second, 1 + u32::from(number)).unwrap();
        server.open(&second, &file(number));
    }
    let shares = (Shares::READ, Shares::NONE);
    let open = |server: &mut Server, number| {
        server.try_open_as(&third, b"open id", &file(number), shares, false)
    };
    assert_eq!(open(&mut server, 9), Err(Status::DELAY));
    server.wait_us(LEASE_US);
    server.renew(&third, 1).unwrap();
    assert!(open(&mut server, 9).is_ok());
    let closed = server.take_actions().len();
    assert_eq!(
        closed, 5,
        "four opens of the one that was renewed least lately, and it"
    );
    assert_eq!(server.renew(&first, 1), Err(Status::BADSESSION));
    assert_eq!(server.renew(&second, 4), Ok(()));
}

#[test]
fn records_of_strangers_are_few() {
    // Whoever reaches the port may send EXCHANGE_ID.
    let mut server = Server::new();
    let patient = server
        .exchange(b"patient", 1, ExchangeIdFlags::empty(), &Server::peer(1))
        .unwrap();
    for number in 0..5000_u32 {
        server
            .exchange(
                &number.to_be_bytes(),
                1,
                ExchangeIdFlags::empty(),
                &Server::peer(2),
            )
            .unwrap();
    }
    let (_, unconfirmed, _) = server.state.clients.sizes();
    assert_eq!(unconfirmed, 1 + limits::UNCONFIRMED_PER_ADDRESS_MAX);
    // From many addresses, it is those that have most that lose theirs.
    for number in 0..5000_u32 {
        let mut peer = Server::peer(3);
        peer.address = IpAddr::from([10, 0, 0, u8::try_from(number % 100).unwrap()]);
        server
            .exchange(
                &[b"x", &number.to_be_bytes()[..]].concat(),
                1,
                ExchangeIdFlags::empty(),
                &peer,
            )
            .unwrap();
    }
    let (_, unconfirmed, _) = server.state.clients.sizes();
    assert_eq!(unconfirmed, limits::UNCONFIRMED_MAX);
    assert_eq!(server.state.bytes_used(), 0);
    assert!(server.create(patient.client, 1, &Server::peer(1)).is_ok());
    server.wait_us(LEASE_US);
    server.state.handle_timers(server.now_us);
    server.settle();
    assert_eq!(server.state.clients.sizes().1, 0);
}

#[test]
fn one_address_cannot_be_every_client() {
    let mut server = Server::with(Config::new().with_clients_max(16));
    let peer = Server::peer(1);
    let mut confirmed = 0;
    let refused = loop {
        let exchanged = server
            .exchange(&[confirmed], 1, ExchangeIdFlags::empty(), &peer)
            .unwrap();
        match server.create(exchanged.client, 1, &peer) {
            Ok(_) => confirmed += 1,
            Err(status) => break status,
        }
    };
    assert_eq!((refused, confirmed), (Status::DELAY, 12));
    server.join(2, 1);
}

/// Locks every second byte of a file until it is refused: how many it has then, and its stateid.
fn lock_all(server: &mut Server, host: &Host, file: &FileKey, kind: LockKind) -> (u64, Stateid) {
    lock_all_from(server, host, file, kind, 100)
}

fn lock_all_from(
    server: &mut Server,
    host: &Host,
    file: &FileKey,
    kind: LockKind,
    first: u64,
) -> (u64, Stateid) {
    let open = server.open(host, file).stateid;
    let owner = b"lock id";
    let mut had = (0, open);
    loop {
        let request = LockRequest {
            client: host.client,
            file,
            kind,
            range: range(first + had.0 * 2, 1),
            is_reclaim: false,
            locker: Locker::New { open, owner },
        };
        match server.state.begin_lock(&request, server.now_us) {
            Ok(intent) => had = (had.0 + 1, server.state.commit_lock(&intent).unwrap()),
            Err(refused) => {
                assert_eq!(refused, LockRefusal::Status(Status::DELAY));
                server.settle();
                return had;
            }
        }
    }
}

fn lock_byte(
    server: &mut Server,
    host: &Host,
    file: &FileKey,
    at: u64,
) -> Result<Stateid, LockRefusal> {
    let open = server.open(host, file).stateid;
    let owner = b"lock id";
    let locker = Locker::New { open, owner };
    server.try_lock(host, file, locker, LockKind::Write, range(at, 1))
}

#[test]
fn ranges_of_a_file_are_bounded_and_no_address_has_all() {
    let mut server = Server::new();
    let (host, other) = (server.host(1), server.host(2));
    let (count, _) = lock_all(&mut server, &host, &file(1), LockKind::Write);
    // A change may add two.
    assert_eq!(count, limits::RANGES_PER_FILE_MAX as u64 / 4 * 3 - 1);
    let denied = lock_byte(&mut server, &other, &file(1), 100);
    assert!(
        matches!(denied, Err(LockRefusal::Denied(_))),
        "others are told what is there"
    );
    lock_byte(&mut server, &other, &file(1), 0).unwrap();
    lock_byte(&mut server, &host, &file(2), 0).unwrap();
}

#[test]
fn ranges_of_clients_that_have_gone_make_room() {
    let mut server = Server::new();
    let (first, second, third) = (server.host(1), server.host(2), server.host(3));
    for host in [&first, &second] {
        lock_all(&mut server, host, &file(1), LockKind::Read);
    }
    server.wait_us(LEASE_US);
    server.renew(&second, 1).unwrap();
    server.wait_us(1);
    let (count, _) = lock_all(&mut server, &third, &file(1), LockKind::Read);
    assert!(count > 2000, "{count}: all that the first one had left");
    assert_eq!(server.renew(&first, 1), Err(Status::BADSESSION));
    assert_eq!(server.renew(&second, 2), Ok(()));
}

#[test]
fn unlocking_the_middle_of_a_range_is_bounded_as_well() {
    let mut server = Server::new();
    let (host, other) = (server.host(1), server.host(2));
    let open = server.open(&host, &file(1)).stateid;
    let owner = b"lock id";
    let locker = Locker::New { open, owner };
    let all = range(10, 1 << 20);
    let lock = server.try_lock(&host, &file(1), locker, LockKind::Write, all);
    let lock = Stateid {
        seqid: 0,
        ..lock.unwrap()
    };
    let mut count = 1;
    let refused = loop {
        let middle = range(10 + count * 2, 1);
        let (client, now_us) = (host.client, server.now_us);
        let begun = server
            .state
            .begin_unlock(client, &file(1), lock, middle, now_us);
        match begun {
            Ok(intent) => server.state.commit_lock(&intent).unwrap(),
            Err(status) => break status,
        };
        count += 1;
        let most = limits::RANGES_PER_FILE_MAX + limits::RANGES_SPLIT_PER_FILE_MAX;
        assert!(count <= most as u64, "without end");
    };
    assert_eq!(refused, Status::DELAY);
    lock_byte(&mut server, &other, &file(1), 0).unwrap();
    // What makes no more of them is always let through.
    server.unlock(&host, &file(1), lock, all);
}

#[test]
fn who_has_all_its_ranges_of_a_file_goes_on_to_unlock() {
    let mut server = Server::new();
    let (host, other) = (server.host(1), server.host(2));
    let all = range(1 << 30, 1 << 20);
    let [first, second] = [1, 2].map(|number| {
        let file = file(number);
        let open = server.open(&host, &file).stateid;
        let owner = b"another";
        let locker = Locker::New { open, owner };
        let lock = server.try_lock(&host, &file, locker, LockKind::Write, all);
        let lock = Stateid {
            seqid: 0,
            ..lock.unwrap()
        };
        lock_all(&mut server, &host, &file, LockKind::Write);
        for hole in 0..100 {
            server.unlock(&host, &file, lock, range((1 << 30) + 10 + hole * 2, 1));
        }
        // It may lock no more for that.
        let refused = LockRefusal::Status(Status::DELAY);
        assert_eq!(lock_byte(&mut server, &host, &file, 0), Err(refused));
        (file, lock)
    });
    // What unlocking has made goes first.
    server.unlock(&host, &first.0, first.1, all);
    lock_byte(&mut server, &host, &first.0, 0).unwrap();
    // Others lock no less.
    let write = LockKind::Write;
    let (count, _) = lock_all_from(&mut server, &other, &second.0, write, 1 << 40);
    assert_eq!(count, limits::RANGES_PER_FILE_MAX as u64 / 16 * 3 - 1);
}

#[test]
fn lock_owners_of_a_file_are_shared_as_well() {
    let mut server = Server::new();
    let (host, other, third) = (server.host(1), server.host(2), server.host(3));
    let open = server.open(&host, &file(1)).stateid;
    let mut count = 0_u64;
    let refused = loop {
        let owner = &count.to_be_bytes();
        let request = LockRequest {
            client: host.client,
            file: &file(1),
            kind: LockKind::Read,
            range: range(100, 1),
            is_reclaim: false,
            locker: Locker::New { open, owner },
        };
        match server.state.begin_lock(&request, server.now_us) {
            Ok(intent) => server.state.commit_lock(&intent).unwrap(),
            Err(refused) => break refused,
        };
        count += 1;
    };
    assert_eq!(refused, LockRefusal::Status(Status::DELAY));
    assert_eq!(count, limits::RANGES_PER_FILE_MAX as u64 / 4 * 3 - 1);
    lock_byte(&mut server, &other, &file(1), 0).unwrap();
    server.wait_us(LEASE_US);
    server.wait_us(1);
    let (count, _) = lock_all(&mut server, &third, &file(1), LockKind::Read);
    assert!(count > 3000, "{count}");
}

#[test]
fn kept_replies_of_clients_that_have_gone_make_room() {
    // Each session is promised 2048 bytes, and each slot but the first takes as many.
    let mut server = Server::with(Config::new().with_reply_bytes_max(16 << 10));
    let here = server.host(1);
    let mut gone = Vec::new();
    for number in 2..=9 {
        let name = format!("gone{number}").into_bytes();
        let peer = Server::peer(number);
        let exchanged = server.exchange(&name, 1, ExchangeIdFlags::empty(), &peer);
        let exchanged = exchanged.unwrap();
        match server.create(exchanged.client, 1, &peer) {
            Ok(_) => gone.push(exchanged.client),
            Err(status) => assert_eq!(status, Status::DELAY),
        }
    }
    assert!(!gone.is_empty());
    let request = Server::request(&here, 1, 1);
    let slots = server.sequence(&here, &request);
    assert_eq!(slots, Err(Status::DELAY), "all is promised");
    server.wait_us(LEASE_US);
    server.renew(&here, 1).unwrap();
    server.wait_us(1);
    assert!(matches!(
        server.sequence(&here, &request),
        Ok(Sequenced::New(..))
    ));
    // And for new clients from other addresses.
    for number in 10..13 {
        server.join(number, 1);
    }
}

#[test]
fn opens_can_be_made_fewer_while_there_are_some() {
    let mut server = Server::with(Config::new().with_opens_max(16));
    let host = server.host(1);
    for number in 0..12 {
        server.open(&host, &file(number));
    }
    let open =
        |server: &mut Server| server.try_open(&host, &file(20), Shares::READ, Shares::NONE, false);
    server.state.set_open_files_max(8, 8);
    assert_eq!(open(&mut server), Err(Status::DELAY));
    assert_eq!(server.state.opens.used(), 12);
    server.state.set_open_files_max(32, 8);
    open(&mut server).unwrap();
}

#[test]
fn each_file_of_an_open_is_counted() {
    let mut server = Server::with(Config::new().with_opens_max(16));
    let host = server.host(1);
    let open = |server: &mut Server, number, access| {
        server.try_open(&host, &file(number), access, Shares::NONE, false)
    };
    for number in 0..4 {
        for access in [Shares::READ, Shares::WRITE, Shares::BOTH, Shares::BOTH] {
            open(&mut server, number, access).unwrap();
        }
    }
    assert_eq!(server.state.opens.used(), 12);
    assert_eq!(open(&mut server, 4, Shares::READ), Err(Status::DELAY));
    let opened = open(&mut server, 0, Shares::READ).unwrap();
    let (read, none) = (Shares::READ, Shares::NONE);
    let narrow = server
        .state
        .open_downgrade(host.client, &file(0), opened.stateid, read, none);
    narrow.unwrap();
    server.settle();
    assert_eq!(server.state.accesses_of(opened.open), [Shares::READ]);
    assert_eq!(server.state.opens.used(), 10);
    open(&mut server, 4, Shares::READ).unwrap();
    open(&mut server, 4, Shares::BOTH).unwrap();
    assert_eq!(open(&mut server, 4, Shares::WRITE), Err(Status::DELAY));
}

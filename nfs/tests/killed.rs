//! A server that is killed with SIGKILL again and again, at any place: the opens of its clients are
//! reclaimed each time. The test starts itself as that server.

use std::io::{BufRead, BufReader, Write};
use std::net::IpAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use capstan_nfs::state::stable::file::StableFile;
use capstan_nfs::state::{
    Config, ConnId, DestroySessionPlace, FileKey, OpenRequest, Peer, Principal, Shares, State,
};
use capstan_nfs_client::call;
use capstan_nfs_proto::v4::types::{ClientId, SessionId};

/// Names the file of stable storage to the server.
const PATH: &str = "CAPSTAN_TEST_STABLE_FILE";
/// Clients that stay, each with a file open.
const STAYING: u8 = 3;
const KILLS: u32 = 20;

struct Server {
    state: State,
    file: StableFile,
    random: u32,
}

impl Server {
    /// What a driver does before it answers.
    fn settle(&mut self) {
        while self.state.poll_action().is_some() {}
        let records = self.state.take_records();
        self.file.append(&records).expect("records are appended");
    }

    fn peer(number: u8) -> Peer {
        Peer {
            connection: ConnId(number.into()),
            address: IpAddr::from([192, 0, 2, number]),
            principal: Principal { flavor: 1, id: 0 },
        }
    }

    fn join(&mut self, number: u8) -> (ClientId, SessionId) {
        self.random += 1;
        let peer = Self::peer(number);
        let exchange = call::exchange_id(std::slice::from_ref(&number), [1; 8]);
        let exchanged = self.state.exchange_id(&exchange, 1, &peer, self.random, 0);
        let clientid = exchanged.expect("EXCHANGE_ID").client;
        let create = call::create_session(clientid, 1, 16, 2048);
        let created = self
            .state
            .create_session(&create, &peer, self.random.into(), 0);
        (clientid, created.expect("CREATE_SESSION").sessionid)
    }

    fn open(&mut self, client: ClientId, number: u8, is_reclaim: bool) {
        let file = FileKey::new(1, &[number]).expect("a key");
        let (access, deny) = (Shares::BOTH, Shares::BOTH);
        let request = OpenRequest {
            client,
            owner: b"open id",
            file: &file,
            access,
            deny,
            is_reclaim,
        };
        self.state.open(&request, 0).expect("OPEN");
    }
}

/// The server: says which of its clients have their file open, and then that others come and go,
/// until it is killed.
fn serve(path: &Path) {
    let (file, before) = StableFile::open(path).expect("stable storage");
    let known = before.owners.clone();
    let state = State::new(Config::new(), before);
    let mut server = Server {
        state,
        file,
        random: 0,
    };
    server.settle();
    let mut out = std::io::stdout().lock();
    let mut say = |what: String| {
        writeln!(out, "\n{what}")
            .and_then(|()| out.flush())
            .expect("the test reads");
    };
    let clients: Vec<_> = (0..STAYING).map(|number| server.join(number).0).collect();
    for (number, client) in (0..STAYING).zip(&clients) {
        let is_known = known.contains([number].as_slice());
        if is_known {
            server.open(*client, number, true);
        }
        server
            .state
            .reclaim_complete(*client, false, 0)
            .expect("RECLAIM_COMPLETE");
        server.settle();
        say(format!(
            "client {number} {}",
            if is_known { "reclaimed" } else { "is new" }
        ));
    }
    // Others that were there when it was killed.
    for number in STAYING..u8::MAX {
        if known.contains([number].as_slice()) {
            let (client, _) = server.join(number);
            server
                .state
                .reclaim_complete(client, false, 0)
                .expect("RECLAIM_COMPLETE");
        }
    }
    for (number, client) in (0..STAYING).zip(&clients) {
        if !known.contains([number].as_slice()) {
            server.open(*client, number, false);
        }
    }
    server.settle();
    for round in 0_u32.. {
        let number = STAYING + u8::try_from(round % 100).expect("less than 100");
        if round < 100 && known.contains([number].as_slice()) {
            // It has a session already.
            continue;
        }
        let (client, session) = server.join(number);
        server
            .state
            .reclaim_complete(client, false, 0)
            .expect("RECLAIM_COMPLETE");
        server.settle();
        let only = DestroySessionPlace::First { is_only: true };
        let destroyed = server
            .state
            .destroy_session(session, only, &Server::peer(number));
        destroyed.expect("DESTROY_SESSION");
        server
            .state
            .destroy_clientid(client, 0)
            .expect("DESTROY_CLIENTID");
        server.settle();
        if round % 7 == 0 {
            server
                .file
                .replace(&server.state.snapshot())
                .expect("it is replaced");
        }
        say(format!("round {round}"));
    }
}

/// The server until the test is over, whatever becomes of that.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // One that has ended cannot be killed, and need not be.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn opens_are_reclaimed_after_twenty_kills() {
    if let Some(path) = std::env::var_os(PATH) {
        return serve(Path::new(&path));
    }
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("state");
    let mut reclaimed = 0;
    for kill in 0..KILLS {
        let program = std::env::current_exe().expect("this program");
        let mut server = Running(
            Command::new(program)
                .args([
                    "opens_are_reclaimed_after_twenty_kills",
                    "--exact",
                    "--nocapture",
                ])
                .env(PATH, &path)
                .stdout(Stdio::piped())
                .spawn()
                .expect("the server starts"),
        );
        let lines = BufReader::new(server.0.stdout.take().expect("its output")).lines();
        // Somewhere in the middle of what it does, each time elsewhere.
        let rounds = format!("round {}", kill % 7);
        let mut clients = 0;
        let mut has_come_so_far = false;
        for line in lines {
            let line = line.expect("a line");
            if line.starts_with("client") {
                let expected = if kill == 0 { "is new" } else { "reclaimed" };
                assert!(line.ends_with(expected), "start {kill}: {line}");
                clients += 1;
                reclaimed += u32::from(kill > 0);
            }
            if line == rounds || line == "round 100" {
                has_come_so_far = true;
                break;
            }
        }
        assert!(
            has_come_so_far && clients == STAYING,
            "start {kill}: the server ended by itself"
        );
        drop(server);
    }
    assert_eq!(reclaimed, (KILLS - 1) * u32::from(STAYING));
}

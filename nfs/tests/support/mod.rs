//! A service of a directory in mounts of the test's own, and a client that talks to it without a
//! transport.
#![allow(
    dead_code,
    clippy::allow_attributes,
    reason = "each test file uses what it needs"
)]

pub(crate) mod acl;
pub(crate) mod attributes;
pub(crate) mod descriptors;
pub(crate) mod files;
pub(crate) mod rpc;

use std::cell::Cell;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use capstan_exports::clients::{Access, Anonymous, ClientRule, ClientRules, Squash};
use capstan_exports::name::NameRule;
use capstan_exports::{ExportSettings, Exports, FileSystemId, Key};
use capstan_memory::Span;
use capstan_nfs::service::{Service, Settings};
use capstan_nfs::state::Config;
use capstan_nfs_client::call;
use capstan_nfs_proto::v4::args::Sequence;
use capstan_nfs_proto::v4::op::Op;
use capstan_nfs_proto::v4::result::OpResult;
use capstan_nfs_proto::v4::status::Status;
use capstan_nfs_proto::v4::types::{ClientId, Component, SessionId};
use capstan_rpc_server::{Arguments, Call, ConnectionNumber, Results, Wire};
use capstan_rpcrdma::rpc::Accepted;
use capstan_rpcrdma::xdr::{Reader, ReducedItem};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use rpc::Answer;

/// Bytes of a call and of a reply: what transports have.
pub(crate) const MESSAGE_BYTES: usize = (1 << 20) + (64 << 10);

/// Gives the thread of the test mounts of its own, which go with it.
fn own_mounts() {
    let none = None::<&str>;
    unshare(CloneFlags::CLONE_NEWNS)
        .and_then(|()| mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none))
        .unwrap_or_else(|reason| {
            panic!(
                "no mounts of its own: {reason}; this test needs root, leave it out with: \
                 cargo nextest run -E 'not test(/^root_/)'"
            )
        });
}

/// A service of one directory of a tmpfs, at `/exported`.
pub(crate) struct Served {
    pub(crate) service: Arc<Service>,
    state: Config,
    mounted: Mounted,
}

/// A folder with a tmpfs mounted below it.
struct Mounted(tempfile::TempDir);

impl Mounted {
    fn path(&self) -> PathBuf {
        self.0.path().join("exported")
    }

    /// The folder of stable storage.
    fn stable(&self) -> PathBuf {
        self.0.path().join("stable")
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // The second is a mount in some tests only.
        for path in [self.path(), self.stable()] {
            let _ = nix::mount::umount2(&path, nix::mount::MntFlags::MNT_DETACH);
        }
    }
}

pub(crate) fn rules(access: Access, squash: Squash) -> ClientRules {
    ClientRules::new(vec![ClientRule {
        network: "192.0.2.0/24".parse().unwrap(),
        access,
        squash,
        anonymous: Anonymous::default(),
        secure_ports: false,
    }])
    .unwrap()
}

/// For [`Served::with`]: an ext4 in the place of the tmpfs, which tells more of its directories.
pub(crate) fn on_ext4(settings: &mut ExportSettings) {
    let path = &settings.path;
    nix::mount::umount2(path, nix::mount::MntFlags::empty()).unwrap();
    let image = path.with_extension("image");
    let file = fs::File::create(&image).unwrap();
    file.set_len(16 << 20).unwrap();
    let run = |program: &str, arguments: &[&std::ffi::OsStr]| {
        let search = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap());
        let mut command = std::process::Command::new(program);
        let done = command.args(arguments).env("PATH", search).output();
        let done = done.unwrap_or_else(|error| panic!("{program}: {error}"));
        assert!(done.status.success(), "{program}: {done:?}");
    };
    // Blocks in which the longest text of a link has room.
    let blocks = ["-q", "-F", "-b", "4096"].map(AsRef::as_ref);
    run("mkfs.ext4", &[&blocks[..], &[image.as_ref()]].concat());
    let loop_device = ["-o".as_ref(), "loop".as_ref()];
    run(
        "mount",
        &[&loop_device[..], &[image.as_ref(), path.as_ref()]].concat(),
    );
    fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
}

impl Served {
    pub(crate) fn new() -> Self {
        Self::with(|_settings| {})
    }

    /// With what `change` does to the settings of the export.
    pub(crate) fn with(change: impl FnOnce(&mut ExportSettings)) -> Self {
        Self::with_state(Config::new(), change)
    }

    /// The same with other bounds of its state.
    pub(crate) fn with_state(state: Config, change: impl FnOnce(&mut ExportSettings)) -> Self {
        own_mounts();
        let mounted = Mounted(tempfile::tempdir().unwrap());
        // Users may come through to what is mounted.
        fs::set_permissions(mounted.0.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let path = mounted.path();
        fs::create_dir(&path).unwrap();
        fs::create_dir(mounted.stable()).unwrap();
        let none = None::<&str>;
        mount(Some("tmpfs"), &path, Some("tmpfs"), MsFlags::empty(), none).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
        let mut export = ExportSettings {
            path,
            client_path: "/exported".into(),
            id: None,
            file_system: Some(FileSystemId([7; 16])),
            clients: rules(Access::ReadWrite, Squash::None),
            names: NameRule::Utf8,
            crossmnt: false,
            mount_point: false,
            direct: false,
        };
        change(&mut export);
        let service = Self::service(&mounted, state.clone(), vec![export]);
        Self {
            service,
            state,
            mounted,
        }
    }

    fn service(mounted: &Mounted, state: Config, exports: Vec<ExportSettings>) -> Arc<Service> {
        let key = Key::from_bytes([5; capstan_exports::key::KEY_BYTES]);
        let settings = Settings {
            state: state.with_times(2_000_000, 2_000_000).unwrap(),
            stable_path: mounted.stable().join("state"),
            owner: (*b"the server").into(),
            cached_files: 16,
        };
        let service = Service::new(Arc::new(Exports::open(key, exports).unwrap()), settings);
        let service = service.unwrap();
        service.begin_grace();
        service
    }

    /// The service as it comes back after a restart: with nothing but its file of stable storage.
    pub(crate) fn restarted(self) -> Self {
        let exports = self.service.exports().all();
        let settings = exports.iter().map(|export| export.settings().clone());
        let settings = settings.collect();
        let Self {
            service,
            state,
            mounted,
        } = self;
        assert_eq!(Arc::strong_count(&service), 1, "clients have it");
        drop((service, exports));
        let service = Self::service(&mounted, state.clone(), settings);
        Self {
            service,
            state,
            mounted,
        }
    }

    /// The service as it starts with nothing, and stable storage on a tmpfs of `bytes` bytes: its
    /// folder.
    pub(crate) fn with_stable_bytes(bytes: usize) -> (Self, PathBuf) {
        let served = Self::new();
        let folder = served.mounted.stable();
        let size = format!("size={bytes}");
        let options = Some(size.as_str());
        mount(
            Some("tmpfs"),
            &folder,
            Some("tmpfs"),
            MsFlags::empty(),
            options,
        )
        .unwrap();
        (served.restarted(), folder)
    }

    /// The exported directory on this machine.
    pub(crate) fn path(&self) -> PathBuf {
        self.mounted.path()
    }

    /// A client with a session, that has nothing to reclaim. Its user is root.
    pub(crate) fn client(&self, name: &str) -> Client {
        let mut client = self.new_client(name);
        client.run(&[Op::ReclaimComplete(false)], |results| {
            assert_eq!(results[0], OpResult::Done(results[0].op()));
        });
        client
    }

    /// A client with a session, as it is before RECLAIM_COMPLETE.
    pub(crate) fn new_client(&self, name: &str) -> Client {
        let mut client = Client::without_session(self.service.clone());
        client.begin(name);
        client
    }
}

/// A client on one connection. A clone is for another slot of its session.
#[derive(Clone)]
pub(crate) struct Client {
    service: Arc<Service>,
    pub(crate) connection: u64,
    pub(crate) peer: SocketAddr,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) minor_version: u32,
    pub(crate) session: SessionId,
    pub(crate) slot: u32,
    /// The next sequence ID of the slot.
    pub(crate) sequence: u32,
    pub(crate) cache_this: bool,
    xid: u32,
    /// Whether the last call was answered without waiting for anything.
    pub(crate) at_once: Cell<bool>,
}

impl Answer {
    /// The results of a COMPOUND.
    pub(crate) fn results<T>(&self, look: impl FnOnce(Status, &[OpResult<'_>]) -> T) -> T {
        call::read_compound(Reader::with_reduced(&self.bytes, &self.reduced), look)
    }
}

impl Client {
    pub(crate) fn without_session(service: Arc<Service>) -> Self {
        Self {
            service,
            connection: 1,
            peer: "192.0.2.1:700".parse().unwrap(),
            uid: 0,
            gid: 0,
            minor_version: 2,
            session: SessionId([0; 16]),
            slot: 0,
            sequence: 1,
            cache_this: false,
            xid: 1,
            at_once: Cell::new(false),
        }
    }

    /// Sends a call and gives what the reply has behind its header.
    pub(crate) fn send(&self, message: &[u8]) -> Answer {
        self.send_with(message, &[], &[], &[])
    }

    /// As [`Client::send`], of a call with data elsewhere and with places for that of the reply.
    pub(crate) fn send_with(
        &self,
        message: &[u8],
        reduced: &[ReducedItem],
        data: &[Span],
        places: &[Option<Span>],
    ) -> Answer {
        let call = Call {
            connection: ConnectionNumber(self.connection),
            wire: Wire::Tcp,
            peer: self.peer,
            message,
            reader: Reader::with_reduced(message, reduced),
            arguments: Arguments(data),
            results: Results(places),
        };
        let answer = rpc::carry_out(&self.service, &call).unwrap();
        assert_eq!(answer.accepted, Accepted::Success);
        self.at_once.set(answer.at_once);
        answer
    }

    /// Bytes of a COMPOUND of just these operations.
    pub(crate) fn compound_bytes(&mut self, ops: &[Op<'_>]) -> Vec<u8> {
        let (xid, ids) = (self.xid, (self.uid, self.gid));
        self.xid += 1;
        let (bytes, reduced) =
            rpc::bytes(|to| call::write_compound(to, xid, ids, self.minor_version, ops));
        assert!(reduced.is_empty());
        bytes
    }

    /// Sends just these operations.
    pub(crate) fn raw<T>(
        &mut self,
        ops: &[Op<'_>],
        look: impl FnOnce(Status, &[OpResult<'_>]) -> T,
    ) -> T {
        let message = self.compound_bytes(ops);
        self.send(&message).results(look)
    }

    /// The SEQUENCE of the next request.
    pub(crate) fn sequence_op(&self) -> Op<'static> {
        Op::Sequence(Sequence {
            sessionid: self.session,
            sequenceid: self.sequence,
            slotid: self.slot,
            highest_slotid: self.slot,
            cachethis: self.cache_this,
        })
    }

    /// Sends operations behind a SEQUENCE, whose result is left out of what `look` gets.
    pub(crate) fn try_run<T>(
        &mut self,
        ops: &[Op<'_>],
        look: impl FnOnce(Status, &[OpResult<'_>]) -> T,
    ) -> T {
        let all: Vec<_> = [self.sequence_op()]
            .into_iter()
            .chain(ops.iter().copied())
            .collect();
        self.sequence += 1;
        self.raw(&all, |status, results| {
            assert!(matches!(results[0], OpResult::Sequence(_)), "{results:?}");
            look(status, &results[1..])
        })
    }

    /// As [`Client::try_run`], of operations that all succeed.
    #[track_caller]
    pub(crate) fn run<T>(&mut self, ops: &[Op<'_>], look: impl FnOnce(&[OpResult<'_>]) -> T) -> T {
        self.try_run(ops, |status, results| {
            assert_eq!(status, Status::OK, "{results:?}");
            look(results)
        })
    }

    /// The status of operations.
    pub(crate) fn status(&mut self, ops: &[Op<'_>]) -> Status {
        self.try_run(ops, |status, _results| status)
    }

    /// EXCHANGE_ID and CREATE_SESSION.
    pub(crate) fn begin(&mut self, name: &str) {
        self.begin_as(name, [1; 8]);
    }

    /// The same, of an instance of the client.
    pub(crate) fn begin_as(&mut self, name: &str, verifier: [u8; 8]) {
        let (client, sequence) = self.exchange_id(name, verifier);
        self.create_session(client, sequence, 4096);
    }

    pub(crate) fn exchange_id(&mut self, name: &str, verifier: [u8; 8]) -> (ClientId, u32) {
        let exchange = Op::ExchangeId(call::exchange_id(name.as_bytes(), verifier));
        self.raw(&[exchange], |status, results| match results {
            [OpResult::ExchangeId(ok)] => (ok.clientid, ok.sequenceid),
            other => panic!("{status}: {other:?}"),
        })
    }

    /// A session of which replies of so many bytes are kept.
    pub(crate) fn create_session(&mut self, client: ClientId, sequence: u32, kept_bytes: u32) {
        let create = Op::CreateSession(call::create_session(client, sequence, 4, kept_bytes));
        self.session = self.raw(&[create], |status, results| match results {
            [OpResult::CreateSession(ok)] => ok.sessionid,
            other => panic!("{status}: {other:?}"),
        });
        self.sequence = 1;
    }
}

/// The operations that lead to a path below the export.
pub(crate) fn path_ops(names: &[&'static str]) -> Vec<Op<'static>> {
    let lookups = names
        .iter()
        .map(|name| Op::Lookup(Component(name.as_bytes())));
    [Op::PutRootFh, Op::Lookup(Component(b"exported"))]
        .into_iter()
        .chain(lookups)
        .collect()
}

/// A file on this machine, with an owner and a mode.
pub(crate) fn put(path: &Path, data: &[u8], uid: u32, mode: u32) {
    fs::write(path, data).unwrap();
    std::os::unix::fs::chown(path, Some(uid), Some(uid)).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

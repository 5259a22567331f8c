//! An export whose file system stands still.

mod support;

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::thread::{self, ThreadId};
use std::time::Duration;

use capstan_exports::limits::{CROWDED_CALLS, STILL_AFTER, STILL_CALLS, STUCK_AFTER};
use capstan_nfs_client::gate::Gate;
use capstan_nfs_proto::v4::op::Op;
use capstan_nfs_proto::v4::status::Status;
use capstan_rpc_server::Program as _;
use nix::mount::{MntFlags, MsFlags, mount, umount2};

use support::files::BOTH;
use support::{Served, path_ops, put};

#[test]
fn root_calls_are_put_off_while_others_of_the_export_hang_until_one_comes_back() {
    let served = Served::new();
    for name in ["file", "gated"] {
        put(&served.path().join(name), b"data", 0, 0o644);
    }
    // A thread that has acted for a client may not do so any more.
    let mut gate = Gate::before(&served.path().join("gated"));
    let mut client = served.client("one");
    let file = client.open("file", "o", BOTH);
    let hanging = STILL_CALLS + 1;
    let (tell, told) = channel();
    thread::scope(|scope| {
        for number in 0..hanging {
            let (tell, served) = (tell.clone(), &served);
            scope.spawn(move || {
                let mut client = served.client(&format!("hanging {number}"));
                tell.send(Said::Begins(thread::current().id())).unwrap();
                client.open("gated", "o", BOTH);
                tell.send(Said::CameBack).unwrap();
            });
        }
        gate.until_waiting(hanging);
        let threads: Vec<_> = told.iter().take(hanging).map(Said::thread).collect();
        let mut told_of = |count: usize, time: Duration| {
            let slow = threads.iter().take(count).map(|thread| (*thread, time));
            let replaced = served.service.slow(&slow.collect::<Vec<_>>());
            let of_it = client.status(&[file.put()]);
            assert_eq!(client.status(&[Op::PutRootFh]), Status::OK);
            (of_it, replaced)
        };
        // Of some that are stuck it has a part of the threads, which it has all of already.
        assert_eq!(told_of(hanging, STUCK_AFTER / 2), (Status::OK, STILL_CALLS));
        let few = CROWDED_CALLS - 1;
        assert_eq!(told_of(few, STUCK_AFTER), (Status::OK, few));
        let some = CROWDED_CALLS;
        assert_eq!(told_of(some, STUCK_AFTER), (Status::DELAY, some));
        // It stands still: as long as it does so, nothing of it is carried out.
        let put_off = (Status::DELAY, STILL_CALLS);
        assert_eq!(told_of(hanging, STILL_AFTER), put_off);
        assert_eq!(told_of(hanging, 2 * STILL_AFTER), put_off);
        // One has come back, and the others are as many as there may be.
        gate.let_one_in();
        assert!(matches!(told.recv(), Ok(Said::CameBack)));
        assert_eq!(told_of(STILL_CALLS, 2 * STILL_AFTER), put_off);
        gate.let_one_in();
        assert!(matches!(told.recv(), Ok(Said::CameBack)));
        let left = STILL_CALLS - 1;
        assert_eq!(told_of(left, 2 * STILL_AFTER), (Status::OK, left));
        assert_eq!(told_of(0, Duration::ZERO), (Status::OK, 0));
        drop(gate);
    });
}

/// What a thread says that hangs.
enum Said {
    Begins(ThreadId),
    CameBack,
}

impl Said {
    fn thread(self) -> ThreadId {
        match self {
            Self::Begins(thread) => thread,
            Self::CameBack => panic!("it was let in"),
        }
    }
}

/// A FUSE file system whose server answers nothing.
struct Dead {
    server: Option<File>,
    at: PathBuf,
}

impl Dead {
    fn mount(at: PathBuf) -> Self {
        std::fs::create_dir(&at).unwrap();
        let server = File::options().read(true).write(true).open("/dev/fuse");
        let server = server.expect("/dev/fuse (`modprobe fuse`)");
        let fd = server.as_raw_fd();
        let options = format!("fd={fd},rootmode=40000,user_id=0,group_id=0,allow_other");
        let fuse = Some("fuse");
        mount(Some("dead"), &at, fuse, MsFlags::empty(), Some(&*options)).unwrap();
        let server = Some(server);
        Self { server, at }
    }
}

impl Drop for Dead {
    fn drop(&mut self) {
        // What waits for it fails then.
        drop(self.server.take());
        let _ = umount2(&self.at, MntFlags::MNT_DETACH);
    }
}

#[test]
fn root_a_dead_file_system_that_is_not_exported_is_not_asked() {
    let served = Served::new();
    let dead = Dead::mount(served.path().join("dead"));
    let (tell, told) = channel();
    let answered = thread::scope(|scope| {
        scope.spawn(|| {
            let mut client = served.client("one");
            tell.send(client.status(&path_ops(&["dead"])))
        });
        let answered = told.recv_timeout(Duration::from_secs(10));
        drop(dead);
        answered
    });
    assert_eq!(answered, Ok(Status::ACCESS));
}

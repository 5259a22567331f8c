//! An export whose file system stands still.

mod support;

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::Barrier;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use capstan_exports::limits::{STILL_AFTER, STILL_CALLS};
use capstan_nfs_proto::v4::op::Op;
use capstan_nfs_proto::v4::status::Status;
use capstan_rpc_server::Program as _;
use nix::mount::{MntFlags, MsFlags, mount, umount2};

use support::files::BOTH;
use support::{Served, path_ops, put};

#[test]
fn root_calls_are_put_off_while_others_of_the_export_hang_until_one_comes_back() {
    let served = Served::new();
    put(&served.path().join("file"), b"data", 0, 0o644);
    let mut client = served.client("one");
    let file = client.open("file", "o", BOTH);
    let (tell, told) = channel();
    let gate = Barrier::new(STILL_CALLS + 1);
    let answers = thread::scope(|scope| {
        for number in 0..STILL_CALLS {
            let (tell, served, gate, put) = (tell.clone(), &served, &gate, file.put());
            scope.spawn(move || {
                let mut client = served.client(&format!("hanging {number}"));
                tell.send((thread::current().id(), client.status(&[put])))
                    .unwrap();
                gate.wait();
            });
        }
        let threads: Vec<_> = told.iter().take(STILL_CALLS).collect();
        let mut told_of = |count: usize, time: Duration| {
            let hanging = threads
                .iter()
                .take(count)
                .map(|(thread, _)| (*thread, time));
            served.service.stuck(&hanging.collect::<Vec<_>>());
            let of_it = client.status(&[file.put()]);
            (of_it, client.status(&[Op::PutRootFh]))
        };
        let answers = [
            told_of(STILL_CALLS, STILL_AFTER / 2),
            told_of(STILL_CALLS - 1, STILL_AFTER),
            told_of(STILL_CALLS, STILL_AFTER),
            told_of(STILL_CALLS, 2 * STILL_AFTER),
            told_of(STILL_CALLS - 1, 2 * STILL_AFTER),
            told_of(0, Duration::ZERO),
        ];
        gate.wait();
        assert!(threads.iter().all(|(_, status)| *status == Status::OK));
        answers
    });
    let (goes_on, put_off) = ((Status::OK, Status::OK), (Status::DELAY, Status::OK));
    assert_eq!(
        answers,
        [goes_on, goes_on, put_off, put_off, goes_on, goes_on]
    );
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

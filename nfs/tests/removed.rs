//! An export that is taken out, with what clients have of it.

mod support;

use std::fs;
use std::time::{Duration, Instant};

use capstan_nfs_proto::v4::args::LockType;
use capstan_nfs_proto::v4::op::Op;
use capstan_nfs_proto::v4::result::OpResult;
use capstan_nfs_proto::v4::status::Status;
use capstan_nfs_proto::v4::types::StableHow;

use support::files::{BOTH, new_lock};
use support::{Served, put};

/// Descriptors of this process that are below a folder.
fn open_below(folder: &std::path::Path) -> usize {
    let open = fs::read_dir("/proc/self/fd").unwrap();
    let paths = open.filter_map(|entry| fs::read_link(entry.unwrap().path()).ok());
    paths.filter(|path| path.starts_with(folder)).count()
}

#[test]
fn root_an_export_that_is_taken_out_keeps_nothing_open() {
    let served = Served::new();
    put(&served.path().join("open"), b"data", 0, 0o644);
    let mut client = served.client("one");
    let file = client.open("open", "o", BOTH);
    client.write(&file, 0, b"new", StableHow::Unstable);
    let lock = Op::Lock(new_lock(&file, "l", LockType::Write, (0, 10)));
    let locked = client.run(&[file.put(), lock], |results| match results[1] {
        OpResult::Lock(stateid) => stateid,
        ref other => panic!("{other:?}"),
    });
    let all = served.service.exports().all();
    let settings: Vec<_> = all.iter().map(|of| of.settings().clone()).collect();
    drop(all);
    let changes = served.service.exports().reload(Vec::new()).unwrap();
    served.service.exports_changed(&changes);
    drop(changes);
    for stateid in [file.stateid, locked] {
        let freed = client.status(&[Op::FreeStateid(stateid)]);
        assert_eq!(freed, Status::BAD_STATEID);
    }
    assert_eq!(client.status(&file.close()), Status::STALE);
    // What was not committed is synced behind the answer.
    let until = Instant::now() + Duration::from_secs(10);
    while open_below(&served.path()) > 0 {
        assert!(Instant::now() < until, "{}", open_below(&served.path()));
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(fs::read(served.path().join("open")).unwrap(), b"newa");
    // The client goes on, with the same session, when it is there again.
    let changes = served.service.exports().reload(settings).unwrap();
    served.service.exports_changed(&changes);
    assert_eq!(client.status(&file.close()), Status::BAD_STATEID);
    let file = client.open("open", "o", BOTH);
    assert_eq!(client.read(&file, 0, 9), (b"newa".to_vec(), true));
    client.close(&file);
}

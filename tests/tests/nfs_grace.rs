//! What the log says of a restart that clients reclaim after.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use capstan_nfs_client::client::Client;
use capstan_nfs_client::tcp;
use capstan_tests::program::{Daemon, utf8};

/// Of both, and the shortest there is.
const TIMES: &str = "lease_time = \"1s\"\ngrace_time = \"1s\"\n";

fn serve(folder: &Path) -> (Daemon, SocketAddr) {
    let file = folder.join("target.toml");
    let text = format!(
        "[target]\nreactors = 1\nmemory_budget = \"64MiB\"\n\
         [nfs]\naddresses = [\"127.0.0.1\"]\ntransports = [\"tcp\"]\nport = 0\n{TIMES}\
         [[export]]\npath = {:?}\npseudo = \"/a\"\nclients = [\"127.0.0.1\"]\n\
         file_system = \"0a6d2c9e-55f1-4a37-8a5c-52b6c4a5f7a1\"\n",
        folder.join("a")
    );
    fs::write(&file, text).unwrap();
    let state = format!("STATE_DIRECTORY={}", utf8(&folder.join("state")));
    let daemon = Daemon::serve_nfs_under(&["env", &state], &["--config", utf8(&file)]);
    let line = daemon.wait_for_log_after(0, &["listening for NFS at "]);
    let at = line.split_once("listening for NFS at ").unwrap().1;
    let at = at.trim().parse().unwrap();
    (daemon, at)
}

#[test]
fn root_the_end_of_a_grace_period_is_told_though_no_call_comes() {
    // A tmpfs has handles, whatever the machine is on.
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let folder = folder.path();
    for name in ["state", "a"] {
        fs::create_dir(folder.join(name)).unwrap();
    }
    let (daemon, at) = serve(folder);
    assert_eq!(daemon.count_log("reclaim"), 0, "{:#?}", daemon.log());
    let client = Client::mount(tcp::connect(at), b"a client of tests", 1, 1);
    daemon.kill();
    drop(client);

    // Its client does not come back, and no other does.
    let (daemon, _at) = serve(folder);
    let begin = "1 client may reclaim what was open or locked before the restart";
    daemon.wait_for_log(&["INFO", begin, "1 s at most (2 s"]);
    let end = "the time to reclaim is over: 1 client did not come back, and has lost what was";
    daemon.wait_for_log(&["INFO", end, "(a client of tests)"]);
    let log = daemon.log();
    let at = |words: &str| log.iter().position(|line| line.contains(words));
    assert!(at(begin) < at(end), "{log:#?}");
    assert_eq!(daemon.count_log("to reclaim is over"), 1, "{log:#?}");
    assert!(daemon.stop().success());
}

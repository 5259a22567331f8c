//! A medium that cannot read some of its blocks: the host is told command by command, with the
//! status NVMe has for it, and everything else goes on.

use std::fs::{File, OpenOptions};
use std::path::PathBuf;
use std::process::Command;
use std::thread;

use capstan_initiator::{Controller, IoError};
use capstan_nvme_proto::status::Status;
use capstan_tests::host::options;
use capstan_tests::target::{SUBNQN, TestTarget};

const MIB: u64 = 1 << 20;

/// A loop device, detached at the end.
struct LoopDevice(String);

impl LoopDevice {
    fn new(file: &PathBuf) -> Self {
        let output = Command::new("losetup")
            .args(["--find", "--show"])
            .arg(file)
            .output()
            .expect("losetup of util-linux");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "no loop device: {error}; this test needs root and loop devices, leave it out with: \
             cargo nextest run -E 'not test(/^root_/)'"
        );
        Self(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

#[test]
fn root_what_the_medium_cannot_read_is_an_unrecovered_read_error_of_that_command() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let image = folder.path().join("image");
    File::create(&image).unwrap().set_len(8 * MIB).unwrap();
    let device = LoopDevice::new(&image);
    let target = TestTarget::start(&format!(
        "[target]\nreactors = 1\n\
         [[listener]]\naddress = \"127.0.0.1\"\nport = 0\n\
         [[subsystem]]\nnqn = \"{SUBNQN}\"\nallow_any_host = true\n\
         [[subsystem.namespace]]\npath = \"{}\"\nlba = 4096\n",
        device.0
    ));
    let controller = Controller::connect(options(target.addresses[0], 1)).unwrap();
    let volume = controller.volume_blocking(1).unwrap().blocking();
    volume.write(0, &vec![7; 4 << 20]).unwrap();
    volume.flush().unwrap();
    // The device keeps its size; what lies behind the end of its file cannot be read.
    let file = OpenOptions::new().write(true).open(&image).unwrap();
    file.set_len(4 * MIB).unwrap();

    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for at in 0..32 {
                    let mut read = vec![0; 64 << 10];
                    volume.read(at * (64 << 10), &mut read).unwrap();
                    assert!(read == vec![7; 64 << 10]);
                    let bad = volume.read(5 * MIB + at * 4096, &mut read[..4096]);
                    let Err(IoError::Status { status, .. }) = bad else {
                        panic!("{bad:?}");
                    };
                    // More: it is in the Error Information log, too.
                    assert_eq!(status, Status::UNRECOVERED_READ_ERROR.dnr().more());
                }
            });
        }
    });
    controller.close();
    drop((volume, controller));
    target.stop();
}

//! What a unit of systemd hides from its processes (systemd.exec(5), `ProtectHome=`,
//! `PrivateTmp=`): something else is mounted over it there, and what is missing is not to be made.

use std::fs;
use std::path::Path;

use super::volume::unescape;

/// What is mounted over a folder, by the path within its file system, and the setting of a unit
/// that does so. The names are those that systemd gives: the first is below /run/systemd, and in
/// a container that systemd-nspawn runs below /run/host.
const HIDING: [(&str, &str); 2] = [
    ("/inaccessible/dir", "ProtectHome="),
    ("/systemd-private-", "PrivateTmp="),
];

/// That `path` is hidden from this process, with what shows it.
pub(super) fn in_words(path: &Path) -> Option<String> {
    let mountinfo = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let setting = by(path, &mountinfo)?;
    Some(format!(
        "the unit hides from this process what may be there ({setting}): `{setting}no` in a drop-in of it shows it, or \
         export a directory elsewhere, such as below /srv"
    ))
}

/// The setting that hides `path`, by the text of `/proc/self/mountinfo` (`proc_pid_mountinfo`(5)).
fn by(path: &Path, mountinfo: &str) -> Option<&'static str> {
    mountinfo.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        let hides = |(within, _): &&(&str, &str)| root.contains(within);
        let (_, setting) = HIDING.iter().find(hides)?;
        path.starts_with(unescape(point)).then_some(*setting)
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::by;

    #[test]
    fn what_a_unit_hides_is_told_from_what_is_not_there() {
        let mounts = "22 1 254:0 / / ro - ext4 /dev/root ro\n\
                      31 22 0:25 /systemd/inaccessible/dir /home ro shared:9 - tmpfs tmpfs rw\n\
                      32 22 254:0 /tmp/systemd-private-1f-capstan-target.service-x/tmp /tmp rw - ext4 /dev/root rw\n\
                      33 22 8:2 / /srv rw - ext4 /dev/sda2 rw\n\
                      34 22 0:26 /host/inaccessible/dir /root ro - tmpfs tmpfs rw\n";
        let of = |path: &str| by(Path::new(path), mounts);
        assert_eq!(of("/home/me/projects"), Some("ProtectHome="));
        assert_eq!(of("/tmp/shared"), Some("PrivateTmp="));
        assert_eq!(of("/root/projects"), Some("ProtectHome="));
        assert_eq!(of("/srv/projects"), None);
        assert_eq!(of("/homes"), None);
    }
}

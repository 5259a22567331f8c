//! A folder that `/etc/fstab` names and that nothing is mounted at: what is missing in it is most
//! likely on the file system that belongs there, and what is made in it is not.

use std::fs;
use std::path::{Path, PathBuf};

use super::volume::unescape;
use crate::shown::word_of;

/// That `path` is below a mount point that has nothing mounted, with what to do.
pub(crate) fn in_words(path: &Path) -> Option<String> {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let point = point_of(path, &read("/etc/fstab"), &read("/proc/self/mountinfo"))?;
    let (shown, point) = (point.display(), word_of(&point));
    Some(format!(
        "{shown} is in /etc/fstab and not mounted: `mount {point}`"
    ))
}

/// The mount point of these texts (fstab(5), `proc_pid_mountinfo`(5)) that `path` is in and that
/// has nothing mounted; of several the outermost, which may have the others.
fn point_of(path: &Path, fstab: &str, mountinfo: &str) -> Option<PathBuf> {
    // A link that leads nowhere yet leads there then.
    let to = fs::read_link(path).map(|to| path.with_file_name("").join(to));
    let path = without_links(to.as_deref().unwrap_or(path))?;
    let mounted = |point: &Path| {
        let mut points = mountinfo.lines().filter_map(|line| line.split(' ').nth(4));
        points.any(|mounted| unescape(mounted) == point)
    };
    let entries = fstab.lines().filter_map(|line| {
        let mut fields = line.split_whitespace();
        let source = fields.next()?;
        fields.next().filter(|_| !source.starts_with('#'))
    });
    // A swap area has `none` there.
    let points = entries.filter(|point| point.starts_with('/'));
    let points = points.filter_map(|point| without_links(&unescape(point)));
    let mut around: Vec<_> = points.filter(|point| path.starts_with(point)).collect();
    around.sort_by_key(|point| point.components().count());
    if mounted(around.last()?) {
        return None;
    }
    around.into_iter().find(|point| !mounted(point))
}

/// The path with the links of what is there of it followed, as mountinfo has it.
fn without_links(path: &Path) -> Option<PathBuf> {
    let path = std::path::absolute(path).ok()?;
    let there = path.ancestors().find_map(|above| {
        let canonical = above.canonicalize().ok()?;
        Some((canonical, path.strip_prefix(above).ok()?))
    });
    let (there, rest) = there?;
    // Joined to nothing it would end with a slash.
    Some(there.components().chain(rest.components()).collect())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::point_of;

    #[test]
    fn a_mount_point_that_has_nothing_is_found_for_all_that_is_below_it() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let [images, link] = ["my images", "link"].map(|name| root.join(name));
        fs::create_dir(&images).unwrap();
        symlink(&images, &link).unwrap();
        let nowhere = root.join("nowhere.img");
        symlink(images.join("disk.img"), &nowhere).unwrap();
        let escaped = images.display().to_string().replace(' ', "\\040");
        let fstab = format!(
            "# {escaped}/inner /x ext4\n/dev/sda1 / ext4 defaults 0 1\n/dev/sda2 none swap sw 0 0\n\n\
             UUID=1\t{escaped}\text4 noauto 0 2\n/dev/sdc {escaped}/absent xfs defaults 0 0\n"
        );
        let root_only = "22 1 254:0 / / rw - ext4 /dev/root rw\n";
        let mounted = format!("{root_only}31 22 8:2 / {escaped} rw shared:1 - ext4 /dev/sda2 rw\n");
        let found = |path: &std::path::Path, mountinfo: &str| point_of(path, &fstab, mountinfo);
        for path in [
            images.join("disk.img"),
            images.join("a/b.img"),
            link.join("disk.img"),
            nowhere.clone(),
        ] {
            assert_eq!(found(&path, root_only), Some(images.clone()), "{path:?}");
            assert_eq!(found(&path, &mounted), None, "{path:?}");
        }
        // The outer one is there, the inner one is not, nor is its folder.
        let absent = images.join("absent");
        let inner = found(&absent.join("disk.img"), &mounted);
        assert_eq!(inner, Some(absent.clone()));
        let outer = found(&absent.join("disk.img"), root_only);
        assert_eq!(outer, Some(images.clone()));
        assert_eq!(found(&root.join("disk.img"), root_only), None);
        assert_eq!(
            found(&root.join("my images.img"), root_only),
            None,
            "a name"
        );
    }
}

//! Lines of mountinfo (proc_pid_mountinfo(5)), and the options of an overlay in them.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use super::Mount;

/// Every mount of a mountinfo file, in its order. A line of another form is passed over.
pub(super) fn parse_all(text: &[u8]) -> Vec<Mount> {
    text.split(|&b| b == b'\n').filter_map(parse).collect()
}

/// `36 35 98:0 /root /mnt rw,noatime shared:1 - ext4 /dev/sda rw,errors=continue`.
fn parse(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|&b| b == b' ');
    let text = |field| std::str::from_utf8(field).ok();
    let id = text(fields.next()?)?.parse().ok()?;
    let parent = text(fields.next()?)?.parse().ok()?;
    let device = text(fields.next()?)?;
    let (major, minor) = device.split_once(':')?;
    let mount_point = unescape(fields.nth(1)?);
    let options = fields.next()?;
    let mut fields = fields.skip_while(|&field| field != b"-").skip(1);
    let fs_type = fields.next()?;
    let source = unescape(fields.next().unwrap_or_default());
    let own_options = fields.next().unwrap_or_default();
    Some(Mount {
        id,
        parent,
        device: (major.parse().ok()?, minor.parse().ok()?),
        source: OsString::from_vec(source),
        mount_point: PathBuf::from(OsString::from_vec(mount_point)),
        fs_type: String::from_utf8_lossy(fs_type).into_owned(),
        read_only: options.split(|&b| b == b',').any(|option| option == b"ro"),
        layers: if fs_type == b"overlay" {
            layers(own_options)
        } else {
            Vec::new()
        },
    })
}

/// The folders in an overlay's options (Documentation/filesystems/overlayfs.rst). A comma or a
/// colon in a name has a backslash before it.
fn layers(options: &[u8]) -> Vec<PathBuf> {
    let mut layers = Vec::new();
    // The escapes of mountinfo lie around those of overlayfs.
    for option in split(&unescape(options), b',') {
        let Some(at) = option.iter().position(|&b| b == b'=') else {
            continue;
        };
        let (key, value) = option.split_at(at);
        let value = value.get(1..).unwrap_or_default();
        let folders = match key {
            b"lowerdir" | b"lowerdir+" | b"datadir+" => split(value, b':'),
            b"upperdir" | b"workdir" => vec![value.to_vec()],
            _ => continue,
        };
        let plain = folders.into_iter().map(|folder| {
            let mut escaped = false;
            let kept = folder.into_iter().filter(|&byte| {
                escaped = byte == b'\\' && !escaped;
                !escaped
            });
            PathBuf::from(OsString::from_vec(kept.collect()))
        });
        // Only the process that mounted it could find what is not absolute: it is on no mount.
        layers.extend(plain.filter(|folder| !folder.as_os_str().is_empty()));
    }
    layers
}

/// Parts between separators, but for those with a backslash before them.
fn split(text: &[u8], separator: u8) -> Vec<Vec<u8>> {
    let mut parts = vec![Vec::new()];
    let mut escaped = false;
    for &byte in text {
        if byte == separator && !escaped {
            parts.push(Vec::new());
        } else if let Some(part) = parts.last_mut() {
            part.push(byte);
        }
        escaped = byte == b'\\' && !escaped;
    }
    parts
}

/// Space, tab, newline and backslash are `\` and three octal digits.
pub(in crate::front_ends::disk) fn unescape(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|_| byte == b'\\');
        let code = digits
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(code) => {
                bytes.push(code);
                rest = after.get(3..).unwrap_or_default();
            }
            None => {
                bytes.push(byte);
                rest = after;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::{Mount, layers, parse, unescape};
    use std::path::PathBuf;

    #[test]
    fn a_line_is_parsed() {
        let line = b"36 35 7:3 / /mnt/a\\040b ro,noatime shared:1 master:2 - ext4 /dev/loop3 rw";
        let mount = Mount {
            id: 36,
            parent: 35,
            device: (7, 3),
            source: "/dev/loop3".into(),
            mount_point: PathBuf::from("/mnt/a b"),
            fs_type: "ext4".to_owned(),
            read_only: true,
            layers: Vec::new(),
        };
        assert_eq!(parse(line), Some(mount));
        assert_eq!(parse(b""), None);
        assert_eq!(parse(b"36 35 7:3 / /mnt rw"), None);
    }

    #[test]
    fn what_is_no_escape_stays() {
        assert_eq!(unescape(b"a\\134b\\9\\"), b"a\\b\\9\\");
    }

    #[test]
    fn the_layers_of_an_overlay_are_found_however_they_are_given() {
        let paths = |options: &[u8]| {
            let layers = layers(options);
            let texts = layers.iter().map(|path| path.display().to_string());
            texts.collect::<Vec<_>>()
        };
        assert_eq!(
            paths(b"rw,lowerdir+=/a,lowerdir+=/b\\040c,datadir+=/d,metacopy=on"),
            ["/a", "/b c", "/d"]
        );
        assert_eq!(
            paths(b"rw,lowerdir=/a\\134:b:/c\\134,d::/e,upperdir=/f"),
            ["/a:b", "/c,d", "/e", "/f"]
        );
        assert_eq!(
            paths(b"rw,lowerdir=relative:,upperdir=../u"),
            ["relative", "../u"]
        );
        assert_eq!(paths(b"rw"), [""; 0]);
    }
}

//! The URI of an export (NetworkBlockDevice/nbd, `doc/uri.md`).

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};

/// Everything but what RFC 3986 calls unreserved (section 2.3), and the slash, which both a path
/// and a query may have.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'/');

/// The URI of export `name` on the unix socket at `socket`, which is to be absolute: others have
/// other working folders.
#[must_use]
pub fn uri(name: &str, socket: &Path) -> String {
    format!(
        "nbd+unix:///{}?socket={}",
        percent_encode(name.as_bytes(), ESCAPED),
        percent_encode(socket.as_os_str().as_bytes(), ESCAPED)
    )
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;

    use super::uri;

    #[test]
    fn what_a_uri_cannot_have_is_escaped() {
        for (name, socket, expected) in [
            ("vol", "/run/s", "nbd+unix:///vol?socket=/run/s"),
            ("a b", "/run/a b", "nbd+unix:///a%20b?socket=/run/a%20b"),
            (
                "50%?#&=+",
                "/run/x&y=z#1?",
                "nbd+unix:///50%25%3F%23%26%3D%2B?socket=/run/x%26y%3Dz%231%3F",
            ),
            ("größe", "/s", "nbd+unix:///gr%C3%B6%C3%9Fe?socket=/s"),
            ("", "/s", "nbd+unix:///?socket=/s"),
            ("/disk", "/s", "nbd+unix:////disk?socket=/s"),
        ] {
            assert_eq!(uri(name, Path::new(socket)), expected);
        }
        let not_utf8 = Path::new(OsStr::from_bytes(b"/run/\xff"));
        assert_eq!(uri("vol", not_utf8), "nbd+unix:///vol?socket=/run/%FF");
    }
}

//! Congestion controls that pace.

use std::ffi::OsString;
use std::os::fd::AsFd;

use nix::sys::socket::{getsockopt, setsockopt, sockopt};

/// Chooses a congestion control that sends as soon as its window is open, where the machine's
/// default is BBR: that one spreads segments over time with a timer, which suits the Internet and
/// takes two thirds of the throughput of a path whose round trip is tens of microseconds.
///
/// For a socket that neither listens nor connects yet: Linux goes on to pace a connection that BBR
/// has begun to pace.
pub fn do_not_pace(socket: &impl AsFd) {
    let default = getsockopt(socket, sockopt::TcpCongestion).unwrap_or_default();
    if default.to_string_lossy().starts_with("bbr") {
        // Without CAP_NET_ADMIN only what `net.ipv4.tcp_allowed_congestion_control` lists can be
        // chosen; Reno always is. Should both be refused, the default is used, and is slower.
        let _refused = ["cubic", "reno"]
            .iter()
            .find(|name| setsockopt(socket, sockopt::TcpCongestion, &OsString::from(name)).is_ok());
    }
}

//! TCP, under iWARP and NVMe/TCP: its congestion control, and what keeps a listener open.

use crate::{Capability, Check, Machine};

/// What Capstan prefers to one that paces, in this order.
const UNPACED: [&str; 2] = ["cubic", "reno"];

/// BBR spreads segments over time by a timer, which costs two thirds of the throughput where round
/// trips are tens of microseconds. Capstan's own connections choose another.
pub(crate) fn congestion_control(machine: &Machine) -> Check {
    const NAME: &str = "TCP congestion control";
    let read = |name: &str| {
        machine
            .read(&format!("/proc/sys/net/ipv4/tcp_{name}"))
            .unwrap_or_default()
    };
    let default = read("congestion_control");
    if !default.starts_with("bbr") {
        return Check::ok(NAME, default);
    }
    let privileged = machine.has_capability(Capability::NetAdmin);
    let choices = read(if privileged {
        "available_congestion_control"
    } else {
        "allowed_congestion_control"
    });
    let chosen = UNPACED
        .iter()
        .find(|name| choices.split_whitespace().any(|choice| choice == **name));
    match chosen {
        Some(chosen) => Check::ok(
            NAME,
            format!("{default}, which paces; Capstan's connections choose {chosen} themselves"),
        ),
        None => Check::warning(
            NAME,
            format!("{default}, which paces, and no other is allowed"),
            "cubic or reno in net.ipv4.tcp_allowed_congestion_control; connections are slower without",
            "sysctl -w net.ipv4.tcp_allowed_congestion_control='reno cubic bbr'",
        ),
    }
}

/// SYNs from addresses that do not answer fill the backlog of a listener without SYN cookies
/// (tcp(7)), and nobody else connects. Nothing is said where they are on.
pub(crate) fn syn_cookies(machine: &Machine) -> Option<Check> {
    let mode = machine.read("/proc/sys/net/ipv4/tcp_syncookies")?;
    (mode.trim() == "0").then(|| {
        Check::warning(
            "SYN cookies",
            "off (net.ipv4.tcp_syncookies is 0)",
            "1: else whoever sends SYNs under addresses of others keeps hosts from connecting",
            "sysctl -w net.ipv4.tcp_syncookies=1",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::{congestion_control, syn_cookies};
    use crate::testing::Tree;
    use crate::{Check, Verdict};

    fn check(default: &str, allowed: &str, capabilities: &str) -> Check {
        let tree = Tree::new()
            .files(
                "proc/sys/net/ipv4",
                &[
                    ("tcp_congestion_control", default),
                    ("tcp_allowed_congestion_control", allowed),
                    ("tcp_available_congestion_control", "reno bbr cubic\n"),
                ],
            )
            .file("proc/self/status", capabilities);
        congestion_control(&tree.machine())
    }

    #[test]
    fn bbr_is_not_used_where_another_is_allowed() {
        let nobody = "CapEff:\t0000000000000000\n";
        assert_eq!(check("cubic\n", "reno cubic\n", nobody).seen, "cubic");
        assert_eq!(
            check("bbr\n", "reno bbr\n", nobody).seen,
            "bbr, which paces; Capstan's connections choose reno themselves"
        );
        let root = "CapEff:\t000001ffffffffff\n";
        assert_eq!(
            check("bbr\n", "reno bbr\n", root).seen,
            "bbr, which paces; Capstan's connections choose cubic themselves"
        );
        assert_eq!(check("bbr\n", "bbr\n", nobody).verdict, Verdict::Warning);
    }
    #[test]
    fn syn_cookies_are_told_of_where_they_are_off() {
        let check = |mode| {
            let tree = Tree::new().file("proc/sys/net/ipv4/tcp_syncookies", mode);
            syn_cookies(&tree.machine())
        };
        assert!(check("1\n").is_none() && check("2\n").is_none());
        // As in a kernel without them.
        assert!(syn_cookies(&Tree::new().machine()).is_none());
        let check = check("0\n").expect("a warning");
        assert_eq!(check.verdict, Verdict::Warning);
        let remedy = check.remedy.expect("what mends it");
        assert_eq!(remedy, "sysctl -w net.ipv4.tcp_syncookies=1");
    }
}

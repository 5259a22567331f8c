//! `[metrics]`: where what is counted is told, and how much of it is timed.

use std::net::{IpAddr, SocketAddr};

use toml::Spanned;

use super::Checker;
use crate::listen::{ListenError, parse_listen};
use crate::schema::RawMetrics;
use crate::{DEFAULT_METRICS_PORT, Listener, Metrics, ProblemKind, limits};

const ALLOWED: &str = "ADDRESS:PORT of this machine, such as \"127.0.0.1:9899\"";

impl Checker<'_> {
    pub(super) fn metrics(&mut self, raw: &RawMetrics, listeners: &[Listener]) -> Metrics {
        let listen = raw.listen.as_ref();
        Metrics {
            listen: listen.and_then(|listen| self.metrics_listen(listen, listeners)),
            sample: self.number(
                "metrics.sample",
                raw.sample.as_ref(),
                limits::DEFAULT_METRICS_SAMPLE,
                limits::METRICS_SAMPLE,
            ),
        }
    }

    fn metrics_listen(
        &mut self,
        written: &Spanned<String>,
        listeners: &[Listener],
    ) -> Option<SocketAddr> {
        let field = "metrics.listen";
        let text = written.get_ref();
        let address = match text.parse::<IpAddr>() {
            Ok(ip) => SocketAddr::new(ip, DEFAULT_METRICS_PORT).to_string(),
            Err(_) => text.clone(),
        };
        let address = match parse_listen(&address) {
            // Without a port it is a name, or nothing.
            Ok(address) => address,
            Err(ListenError::NotAnAddressAndPort(_) | ListenError::NotAnAddress(_)) => {
                self.not_allowed(field, written.span(), format!("{text:?}"), ALLOWED);
                return None;
            }
            Err(error) => {
                self.report(field, Some(written.span()), error);
                return None;
            }
        };
        if let Some(other) = listeners.iter().find(|other| other.meets(address)) {
            let kind = ProblemKind::NotAllowed {
                value: address.to_string(),
                allowed: format!(
                    "a port that no [[listener]] has there, as {} does",
                    other.address
                ),
            };
            self.report(field, Some(written.span()), kind);
            return None;
        }
        Some(address)
    }
}

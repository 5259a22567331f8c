//! SECINFO and SECINFO_NO_NAME (RFC 8881, sections 18.29 and 18.45).

use capstan_nfs_proto::codec::List;
use capstan_nfs_proto::v4::args::SecinfoStyle;
use capstan_nfs_proto::v4::result::OpResult;
use capstan_nfs_proto::v4::results::Flavor;
use capstan_nfs_proto::v4::types::Component;
use capstan_rpcrdma::rpc::AuthFlavor;

use super::context::{Context, Outcome, Results};

/// The flavors that every export takes, the better one first: a call of AUTH_NONE is carried out as
/// the export's anonymous user. knfsd says so as well.
const FLAVORS: &[Flavor<'static>] = &[
    Flavor::Other(AuthFlavor::SYS.0),
    Flavor::Other(AuthFlavor::NONE.0),
];

impl Context<'_> {
    pub(super) fn security_of(
        &mut self,
        component: Component<'_>,
        results: &mut Results<'_, '_>,
    ) -> Outcome {
        self.found(component)?;
        self.consume();
        Ok(results.push(&OpResult::SecInfo(List::of(FLAVORS)))?)
    }

    pub(super) fn security_without_name(
        &mut self,
        style: SecinfoStyle,
        results: &mut Results<'_, '_>,
    ) -> Outcome {
        match style {
            SecinfoStyle::CurrentFh => {
                self.object()?;
            }
            SecinfoStyle::Parent => {
                self.parent()?;
            }
        }
        self.consume();
        Ok(results.push(&OpResult::SecInfoNoName(List::of(FLAVORS)))?)
    }

    /// There is no current filehandle behind these operations (RFC 8881, section 2.6.3.1.1.8), so
    /// that what follows does not depend on whether the flavor is the right one.
    fn consume(&mut self) {
        self.current = None;
        self.stateids.forget();
    }
}

//! A queue pair of any provider, as the enum of those that have calls beyond verbs.

use std::any::Any;

use crate::contract::{PostError, QpNum, QpState, QueuePair, SendWr, Sge};
use crate::iwarp::QpHandle;
#[cfg(feature = "verbs")]
use crate::verbs::Handle;

/// A queue pair. Its calls beyond verbs are in [`direct`](crate::direct).
pub struct Pair(pub(crate) Kind);

pub(crate) enum Kind {
    Iwarp(Box<QpHandle>),
    #[cfg(feature = "verbs")]
    Verbs(Box<Handle>),
    Other(Box<dyn QueuePair>),
}

impl From<Box<dyn QueuePair>> for Pair {
    fn from(pair: Box<dyn QueuePair>) -> Self {
        let pair = match downcast(pair) {
            Ok(pair) => return Self(Kind::Iwarp(pair)),
            Err(pair) => pair,
        };
        #[cfg(feature = "verbs")]
        let pair = match downcast(pair) {
            Ok(pair) => return Self(Kind::Verbs(pair)),
            Err(pair) => pair,
        };
        Self(Kind::Other(pair))
    }
}

fn downcast<T: QueuePair>(pair: Box<dyn QueuePair>) -> Result<Box<T>, Box<dyn QueuePair>> {
    let object: &dyn Any = &*pair;
    if !object.is::<T>() {
        return Err(pair);
    }
    let object: Box<dyn Any> = pair;
    Ok(object.downcast().expect("its type was looked at"))
}

/// What is done with the queue pair of each provider.
macro_rules! each {
    ($kind:expr, $pair:ident => $done:expr) => {
        match $kind {
            Kind::Iwarp($pair) => $done,
            #[cfg(feature = "verbs")]
            Kind::Verbs($pair) => $done,
            Kind::Other($pair) => $done,
        }
    };
}

impl QueuePair for Pair {
    fn num(&self) -> QpNum {
        each!(&self.0, pair => pair.num())
    }

    fn state(&self) -> QpState {
        each!(&self.0, pair => pair.state())
    }

    fn post_recv(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        each!(&mut self.0, pair => pair.post_recv(wr_id, sges))
    }

    fn post_send(&mut self, wr: &SendWr<'_>) -> Result<(), PostError> {
        each!(&mut self.0, pair => pair.post_send(wr))
    }

    fn ring_doorbell(&mut self) {
        each!(&mut self.0, pair => pair.ring_doorbell());
    }
}

impl Pair {
    pub(crate) fn iwarp(&mut self) -> Option<&mut QpHandle> {
        match &mut self.0 {
            Kind::Iwarp(pair) => Some(pair),
            #[cfg(feature = "verbs")]
            Kind::Verbs(_) => None,
            Kind::Other(_) => None,
        }
    }
}

//! Data from the host: asking for it.

use capstan_memory::Buffer;
use capstan_nvme_proto::tcp::r2t::R2tPlan;
use capstan_nvme_proto::tcp::setup::Digests;

use super::super::limits::DIRECT_MIN_BYTES;
use super::{ControllerQueue, Pull};
use crate::data::Full;
use crate::queue::{Event, Pulled, Tag};

impl ControllerQueue {
    /// Asks the host for `len_bytes` of data of the command `cid`, to the start of `sink`. At most
    /// one pull per command, and none together with a push. Where the queue has ended the sink
    /// comes back with [`Event::Returned`]; not to be called after [`Event::Quiesced`].
    ///
    /// # Errors
    /// The sink, where it is shorter than that.
    pub fn pull(
        &mut self,
        tag: Tag,
        cid: u16,
        len_bytes: u32,
        sink: Buffer,
    ) -> Result<(), Full<Buffer>> {
        let side = &mut self.side;
        let agreed = side.agreed.filter(|_| self.stream.is_open());
        let Some((agreed, writer)) = agreed else {
            side.events.push_back(Event::Returned(tag, sink));
            return Ok(());
        };
        if len_bytes > sink.len_bytes() {
            return Err(Full {
                what: sink,
                until_room: false,
            });
        }
        let plan = R2tPlan::new(cid, len_bytes, side.settings.r2t_max_bytes, &agreed);
        if len_bytes == 0 {
            let intact = true;
            let pulled = Pulled { tag, sink, intact };
            side.events.push_back(Event::Pulled(pulled));
            return Ok(());
        }
        side.pulls = side.pulls.saturating_add(1);
        side.pulls_begun += 1;
        let number = side.pulls_begun;
        if len_bytes >= DIRECT_MIN_BYTES {
            side.large_pulls = side.large_pulls.saturating_add(1);
        }
        side.slot(tag).pull = Some(Pull {
            plan,
            sink,
            intact: true,
            number,
            arrived_bytes: 0,
        });
        side.ask(&mut self.stream, &writer, tag.0);
        Ok(())
    }

    /// The digests that both sides have agreed on; none before.
    #[must_use]
    pub fn digests(&self) -> Digests {
        (self.side.agreed).map_or(Digests::empty(), |(agreed, _)| agreed.digests)
    }

    /// Whether the host is asked for data.
    #[must_use]
    pub fn is_pulling(&self) -> bool {
        self.side.pulls > 0
    }
}

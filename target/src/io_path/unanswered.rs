//! Storage operations that have completed and whose commands are not answered yet: passed on a few
//! at a time.

use std::collections::VecDeque;

use capstan_storage::Completion;

use crate::limits::{DISK_ANSWER_BYTES_PER_TURN, DISK_ANSWERS_PER_TURN};

/// Completions, in the order in which the disks ended them.
#[derive(Default)]
pub(super) struct Unanswered(VecDeque<Completion>);

/// What one turn has passed on.
#[derive(Default)]
pub(super) struct Answered {
    answers: usize,
    bytes: u32,
}

impl Answered {
    /// Whether the turn passed on any.
    pub(super) fn any(&self) -> bool {
        self.answers > 0
    }
}

impl Unanswered {
    /// Puts `completions` behind those that wait.
    pub(super) fn extend(&mut self, completions: impl Iterator<Item = Completion>) {
        self.0.extend(completions);
    }

    /// The next one that this turn passes on; `None` once it has passed on its share, or none
    /// waits.
    pub(super) fn next(&mut self, turn: &mut Answered) -> Option<Completion> {
        if turn.answers >= DISK_ANSWERS_PER_TURN || turn.bytes >= DISK_ANSWER_BYTES_PER_TURN {
            return None;
        }
        let completion = self.0.pop_front()?;
        let data = completion.data.as_ref();
        turn.answers += 1;
        turn.bytes = turn
            .bytes
            .saturating_add(data.map_or(0, |data| data.buffer.len_bytes()));
        Some(completion)
    }
}

#[cfg(test)]
mod tests {
    use capstan_memory::{Pages, Pool};
    use capstan_storage::{Completion, Data};

    use super::{Answered, Unanswered};

    /// How many of `waiting`, which have a buffer of so many KiB each, leave in each turn until
    /// none waits.
    fn turns(waiting: &[u32]) -> Vec<usize> {
        let pool = Pool::new(8 << 20, Pages::Ordinary).unwrap();
        let mut unanswered = Unanswered::default();
        unanswered.extend((0..).zip(waiting).map(|(token, &kib)| Completion {
            token,
            result: Ok(()),
            data: (kib > 0).then(|| Data {
                buffer: pool.take(kib << 10).unwrap(),
                offset_bytes: 0,
            }),
        }));
        let (mut tokens, mut turns) = (0.., Vec::new());
        loop {
            let mut turn = Answered::default();
            let mut count = 0;
            while let Some(completion) = unanswered.next(&mut turn) {
                assert_eq!(Some(completion.token), tokens.next(), "out of order");
                count += 1;
            }
            assert_eq!(turn.any(), count > 0);
            if count == 0 {
                return turns;
            }
            turns.push(count);
        }
    }

    #[test]
    fn four_answers_leave_in_a_turn() {
        assert_eq!(turns(&[4; 9]), [4, 4, 1]);
        assert_eq!(turns(&[0; 5]), [4, 1], "flushes have no buffer");
    }

    #[test]
    fn a_turn_ends_with_64_kib_of_answers() {
        assert_eq!(turns(&[64; 3]), [1, 1, 1]);
        assert_eq!(turns(&[1024, 4, 4]), [1, 2], "a larger one leaves alone");
        assert_eq!(turns(&[32; 4]), [2, 2]);
        assert_eq!(turns(&[4, 4, 128, 4]), [3, 1]);
    }

    #[test]
    fn nothing_waits() {
        assert!(turns(&[]).is_empty());
    }
}

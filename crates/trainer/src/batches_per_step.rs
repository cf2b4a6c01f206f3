//! [`BatchesPerStep`]: the number of batches per optimizer step, as the host counts them.

use crate::position::BatchPosition;

/// The number of batches per optimizer step, as pairs of a first epoch and a number. The epochs are
/// in ascending order and begin with 0.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct BatchesPerStep(Vec<(u64, u64)>);

impl BatchesPerStep {
    /// The numbers of a schedule with ascending epochs. The number is 1 before the first of them.
    pub(crate) fn new(scheduling: &[(u64, u64)]) -> BatchesPerStep {
        let mut pairs = vec![(0, 1)];
        pairs.extend(scheduling.iter().map(|&(epoch, every)| (epoch, every.max(1))));
        if pairs.get(1).is_some_and(|(epoch, _)| *epoch == 0) {
            pairs.remove(0);
        }
        BatchesPerStep(pairs)
    }

    /// The pairs of a first epoch and a number.
    pub(crate) fn pairs(&self) -> &[(u64, u64)] {
        &self.0
    }

    /// The number of batches per optimizer step in this epoch.
    pub(crate) fn every(&self, epoch: u64) -> u64 {
        self.0.iter().rev().find(|(from, _)| *from <= epoch).map_or(1, |(_, every)| *every)
    }

    /// Whether any step takes more than one batch.
    pub(crate) fn takes_several(&self) -> bool {
        self.0.iter().any(|(_, every)| *every > 1)
    }

    /// The optimizer steps in the first `batches` batches of an epoch.
    pub(crate) fn steps_of(&self, epoch: u64, batches: u64) -> u64 {
        batches.div_ceil(self.every(epoch))
    }

    /// The optimizer steps in the first `epochs` epochs, of `batches` batches each.
    pub(crate) fn steps(&self, epochs: u64, batches: u64) -> u64 {
        let ends = self.0.iter().skip(1).map(|(from, _)| *from).chain([u64::MAX]);
        let each = self.0.iter().zip(ends).map(|(&(from, every), end)| {
            end.min(epochs).saturating_sub(from).saturating_mul(batches.div_ceil(every))
        });
        each.fold(0, u64::saturating_add)
    }

    /// The position after this number of optimizer steps, in epochs of `batches` batches.
    pub(crate) fn position(&self, steps: u64, batches: u64) -> BatchPosition {
        let mut remaining = steps;
        let ends = self.0.iter().skip(1).map(|(from, _)| *from).chain([u64::MAX]);
        for (&(from, every), end) in self.0.iter().zip(ends) {
            let each = batches.div_ceil(every).max(1);
            if remaining / each < end - from {
                let epoch = from + remaining / each;
                let batch = (remaining % each).saturating_mul(every);
                return BatchPosition { epoch, batch };
            }
            remaining = remaining.saturating_sub((end - from).saturating_mul(each));
        }
        BatchPosition { epoch: u64::MAX, batch: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_and_positions_match_a_loop() {
        for scheduling in [&[][..], &[(0, 3)], &[(2, 4)], &[(0, 2), (1, 5), (4, 1)]] {
            let sizes = BatchesPerStep::new(scheduling);
            for batches in [1, 4, 7] {
                let mut steps = 0;
                for epoch in 0..8 {
                    assert_eq!(
                        sizes.steps(epoch, batches),
                        steps,
                        "{scheduling:?} {batches} {epoch}"
                    );
                    let every = scheduling
                        .iter()
                        .rfind(|(from, _)| *from <= epoch)
                        .map_or(1, |(_, every)| *every);
                    for batch in 0..batches {
                        if batch % every == 0 {
                            assert_eq!(
                                sizes.position(steps, batches),
                                BatchPosition { epoch, batch },
                                "{scheduling:?} {batches}"
                            );
                            steps += 1;
                        }
                    }
                }
            }
        }
        // An endless loader, an endless run.
        let two = BatchesPerStep::new(&[(0, 2)]);
        let position = two.position(5, u64::MAX);
        assert_eq!(position, BatchPosition { epoch: 0, batch: 10 });
        assert_eq!(two.steps(u64::MAX, u64::MAX), u64::MAX);
    }
}

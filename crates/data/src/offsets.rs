//! Finds which of several concatenated parts contains an item.
//!
//! Out of scope: the parts (files, shards, blocks of rows).

/// The index of the first item of each part, and the total number of items.
#[derive(Clone, Debug)]
pub struct Offsets(Vec<usize>);

impl Offsets {
    /// Makes the offsets of parts with these numbers of items.
    pub fn new(parts: impl IntoIterator<Item = usize>) -> Offsets {
        let mut starts = vec![0usize];
        let mut total = 0usize;
        starts.extend(parts.into_iter().map(|part| {
            total = total.saturating_add(part);
            total
        }));
        Offsets(starts)
    }

    /// The total number of items.
    #[allow(clippy::len_without_is_empty, reason = "hidden: its users only need the number")]
    pub fn len(&self) -> usize {
        self.0.last().copied().unwrap_or(0)
    }

    /// The index of the first item of a part.
    pub fn first(&self, part: usize) -> usize {
        self.0.get(part).copied().unwrap_or_else(|| self.len())
    }

    /// The part that contains an item, and the item's index in this part; `None` if the index is
    /// out of range.
    pub fn find(&self, item: usize) -> Option<(usize, usize)> {
        let part = self
            .0
            .partition_point(|&start| start <= item)
            .checked_sub(1)
            .filter(|_| item < self.len())?;
        Some((part, item - self.0[part]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_without_items_have_none() {
        let starts = Offsets::new([0, 2, 0, 0, 1, 0]);
        assert_eq!(
            (0..4).map(|item| starts.find(item)).collect::<Vec<_>>(),
            [Some((1, 0)), Some((1, 1)), Some((4, 0)), None]
        );
        assert_eq!((starts.len(), starts.first(4), starts.first(9)), (3, 2, 3));
        assert_eq!((Offsets::new([]).len(), Offsets::new([]).find(0)), (0, None));
    }
}

//! Which samples go into which batch: the batches of one epoch or of several, handed out one after another.
//!
//! Not here: reading them. A plan never touches a sample, so skipping batches costs nothing.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::batch::panicked;
use crate::loader::Core;
use crate::{Error, Result};

/// One batch that is to be read, or this process's part of it.
pub(crate) struct Work {
    order: Arc<Vec<usize>>,
    /// The samples of this process.
    range: Range<usize>,
    /// The place of the batch's first sample, which pads it.
    first: usize,
    pub(crate) epoch: u64,
    pub(crate) index: usize,
}

impl Work {
    pub(crate) fn samples(&self) -> &[usize] {
        &self.order[self.range.clone()]
    }

    pub(crate) fn padding(&self) -> usize {
        self.order[self.first]
    }
}

/// The batches that are still to be handed out.
pub(crate) struct Plan {
    core: Arc<Core>,
    epochs: Range<u64>,
    /// The next batch of epoch `epochs.start`.
    next: usize,
    /// The order of epoch `epochs.start`, once someone needed it.
    order: Option<Arc<Vec<usize>>>,
    /// How many were handed out, errors included.
    pub(crate) issued: u64,
}

impl Plan {
    pub(crate) fn new(core: Arc<Core>, epochs: Range<u64>, start_batch: usize) -> Plan {
        Plan { core, epochs, next: start_batch, order: None, issued: 0 }
    }

    /// The next batch, or the reason why there can be no more. After an error comes nothing.
    pub(crate) fn next(&mut self) -> Option<Result<Work>> {
        let batches = self.core.batches();
        if self.next == batches && !self.epochs.is_empty() {
            self.epochs.start += 1;
            self.next = 0;
            self.order = None;
        }
        if self.epochs.is_empty() {
            return None;
        }
        let epoch = self.epochs.start;
        let order = self.check_start(batches).and_then(|()| match &self.order {
            Some(order) => Ok(Arc::clone(order)),
            None => self.make_order(epoch).map(Arc::new),
        });
        self.issued += 1;
        match order {
            Ok(order) => {
                let index = self.next;
                let first = index * self.core.stride();
                let rows = self.core.rows_of_order();
                // A process may have none of the samples of a short batch.
                let range = (first + rows.start).min(order.len())..(first + rows.end).min(order.len());
                self.next += 1;
                self.order = Some(Arc::clone(&order));
                Some(Ok(Work { order, range, first, epoch, index }))
            }
            Err(error) => {
                self.epochs = 0..0;
                Some(Err(error))
            }
        }
    }

    fn check_start(&self, batches: usize) -> Result<()> {
        match self.next < batches {
            true => Ok(()),
            false => Err(Error::usage(format!("cannot start at batch {}: an epoch has {batches} batches", self.next))),
        }
    }

    /// The order of an epoch, checked: a sampler is a user's code.
    fn make_order(&self, epoch: u64) -> Result<Vec<usize>> {
        let Core { config, num_samples, replicas, .. } = &*self.core;
        let len = &config.len;
        let order_of = |replica| {
            catch_unwind(AssertUnwindSafe(|| config.sampler.order(epoch, *len, replica)))
                .map_err(|payload| panicked("the sampler panicked", payload))
        };
        let replica = replicas.replica();
        let order = order_of(replica)?;
        if let Some(other) = self.core.another_rank()
            && order_of(other)? != order
        {
            return Err(Error::usage(format!(
                "the sampler {} gives another order for rank {} of {} replicas than for rank {}, and is not declared \
                     final, so that each process would take its part of a different order and samples would be lost; \
                     declare it final (`is_final`) if it divides the samples itself, or give all ranks the same order",
                config.sampler.describe(),
                replica.rank,
                replica.num_replicas,
                other.rank
            )));
        }
        if order.len() != *num_samples {
            return Err(Error::usage(format!(
                "the sampler's order for epoch {epoch} has {} samples, but its num_samples says {num_samples}",
                order.len()
            )));
        }
        if let Some(place) = order.iter().position(|index| index >= len) {
            return Err(Error::usage(format!(
                "the sampler's order for epoch {epoch} has the index {} at place {place}, but the dataset has {len} \
                 samples",
                order[place]
            )));
        }
        Ok(order)
    }
}

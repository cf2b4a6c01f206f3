//! Which samples go into which batch: the batches of one epoch or of several, handed out one after another.
//!
//! Not here: decoding and writing them. Of a dataset a plan never touches a sample, so that skipping batches costs nothing;
//! the records of a stream it reads in order, and skips undecoded.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::error::panicked;
use crate::loader::buckets::Span;
use crate::loader::data_loader::Core;
use crate::loader::monitor::Watch;
use crate::{Error, OnError, Result, Sampler};
use crate::{loader::builder::Config, loader::builder::Data};
use crate::{loader::pull::Drawn, loader::pull::Pull};

/// One batch that is to be read, or this process's part of it.
pub(crate) struct Work {
    pub(crate) rows: Rows,
    /// Which of the loader's shapes it has.
    pub(crate) bucket: usize,
    pub(crate) epoch: u64,
    pub(crate) index: usize,
}

/// What a batch is read from; at most as many samples as it has rows.
pub(crate) enum Rows {
    Indices {
        order: Arc<Vec<usize>>,
        /// The places in the order of this process's samples.
        range: Range<usize>,
        /// The place of the batch's first sample, which pads it.
        first: usize,
        /// Samples of which one may take the place of a bad one.
        others: Arc<Vec<usize>>,
    },
    Records {
        records: Vec<Drawn>,
        /// Whether the batch's first record is among them.
        has_first: bool,
        /// Others, of which the first that can be read pads the batch where none of its own can.
        others: Vec<Drawn>,
    },
}

/// The batches that are still to be handed out.
pub(crate) struct Plan {
    core: Arc<Core>,
    epochs: Range<u64>,
    /// The next batch of epoch `epochs.start`.
    next: usize,
    epoch: Epoch,
    /// How many were handed out, errors included.
    pub(crate) issued: u64,
}

/// What is known of epoch `epochs.start`.
enum Epoch {
    Unopened,
    Order(Arc<Vec<usize>>),
    /// Batches lie in the order where the spans say.
    Buckets(Arc<Vec<usize>>, Vec<Span>),
    Stream(Pull),
}

impl Plan {
    pub(crate) fn new(core: Arc<Core>, epochs: Range<u64>, start_batch: usize) -> Plan {
        Plan { core, epochs, next: start_batch, epoch: Epoch::Unopened, issued: 0 }
    }

    /// The next batch, or the reason why there can be no more. After an error comes nothing.
    pub(crate) fn next(&mut self, stop: &AtomicBool) -> Option<Result<Work>> {
        let number = self.issued;
        // A user's code that panics where nothing else catches it, a stream in its `Drop` say, must not end a thread that
        // others wait for.
        let next = catch_unwind(AssertUnwindSafe(|| self.try_next(stop)))
            .unwrap_or_else(|payload| Some(Err(panicked("the planning of a batch panicked", payload))))?;
        self.issued = number + 1;
        if next.is_err() {
            self.epochs = 0..0;
        }
        Some(next)
    }

    fn try_next(&mut self, stop: &AtomicBool) -> Option<Result<Work>> {
        let batches = self.core.batches();
        if self.next == batches && !self.epochs.is_empty() {
            self.epochs.start += 1;
            self.next = 0;
            self.epoch = Epoch::Unopened;
        }
        if self.epochs.is_empty() {
            return None;
        }
        let (epoch, index) = (self.epochs.start, self.next);
        let watch = Watch::start();
        let rows = self.check_start(batches).and_then(|()| self.rows(epoch, stop));
        if let Epoch::Stream(_) = &self.epoch {
            self.core.monitor.drew_records(&watch);
        }
        self.next += 1;
        Some(rows.map(|(rows, bucket)| Work { rows, bucket, epoch, index }))
    }

    fn check_start(&self, batches: usize) -> Result<()> {
        match self.next < batches {
            true => Ok(()),
            false => Err(Error::usage(format!("cannot start at batch {}: an epoch has {batches} batches", self.next))),
        }
    }

    /// What batch `next` is read from, and its bucket.
    fn rows(&mut self, epoch: u64, stop: &AtomicBool) -> Result<(Rows, usize)> {
        if matches!(self.epoch, Epoch::Unopened) {
            self.epoch = self.open(epoch, stop)?;
        }
        let first = self.next * self.core.stride();
        let rows = self.core.rows_of_order();
        match &mut self.epoch {
            Epoch::Unopened => Err(Error::usage("an epoch was not opened; this is a bug in fulmen-data")),
            Epoch::Order(order) => {
                // A process may have none of the samples of a short batch.
                let range = (first + rows.start).min(order.len())..(first + rows.end).min(order.len());
                Ok((Rows::Indices { order: Arc::clone(order), range, first, others: Arc::clone(order) }, 0))
            }
            Epoch::Buckets(order, spans) => {
                let Some(&Span { start, end, bucket }) = spans.get(self.next) else {
                    return Err(Error::usage("an epoch has fewer batches than planned; this is a bug in fulmen-data"));
                };
                let range = (start + rows.start).min(end)..(start + rows.end).min(end);
                let others = Arc::clone(&self.core.members[bucket]);
                Ok((Rows::Indices { order: Arc::clone(order), range, first: start, others }, bucket))
            }
            Epoch::Stream(pull) => {
                let of_all = self.core.num_samples.saturating_sub(first).min(self.core.stride());
                let mine = rows.start.min(of_all)..rows.end.min(of_all);
                // Where no sample may be missing, the batch's first one pads a short batch, as it does in one process.
                // Else all of them may have to: what can be read of a batch at all keeps it from failing in each process.
                let first_only = self.core.config.on_error == OnError::Fail;
                let (mut records, mut others) = (Vec::with_capacity(mine.len()), Vec::new());
                let mut read = 0;
                while read < of_all
                    && let Some(drawn) = pull.next(stop)?
                {
                    if mine.contains(&read) {
                        records.push(drawn);
                    } else if others.is_empty() || !first_only {
                        others.push(drawn);
                    }
                    read += 1;
                }
                if read == 0 {
                    others.push(pull.spare(stop)?);
                }
                if first + of_all == self.core.num_samples {
                    pull.check_end(stop)?;
                }
                Ok((Rows::Records { records, has_first: mine.start == 0, others }, 0))
            }
        }
    }

    fn open(&self, epoch: u64, stop: &AtomicBool) -> Result<Epoch> {
        match &self.core.config.data {
            Data::Map { len, sampler, .. } => {
                let order = self.make_order(epoch, *len, &**sampler)?;
                let Config { buckets, last_batch, .. } = &*self.core.config;
                Ok(match buckets {
                    None => Epoch::Order(Arc::new(order)),
                    Some(buckets) => {
                        let (order, spans) = buckets.batches(&order, self.core.stride(), *last_batch);
                        Epoch::Buckets(Arc::new(order), spans)
                    }
                })
            }
            Data::Stream { dataset, length, .. } => {
                let mut pull = Pull::new(Arc::clone(&self.core), Arc::clone(dataset), *length, epoch);
                for _ in 0..self.next {
                    pull.skip_batch(self.core.stride(), stop)?;
                }
                Ok(Epoch::Stream(pull))
            }
        }
    }

    /// The order of an epoch, checked: a sampler is a user's code.
    fn make_order(&self, epoch: u64, len: usize, sampler: &dyn Sampler) -> Result<Vec<usize>> {
        let Core { num_samples, replicas, .. } = &*self.core;
        let order_of = |replica| {
            catch_unwind(AssertUnwindSafe(|| sampler.order(epoch, len, replica)))
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
                sampler.describe(),
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
        if let Some(place) = order.iter().position(|&index| index >= len) {
            return Err(Error::usage(format!(
                "the sampler's order for epoch {epoch} has the index {} at place {place}, but the dataset has {len} \
                 samples",
                order[place]
            )));
        }
        Ok(order)
    }
}

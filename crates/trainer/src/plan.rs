//! [`Plan`]: how long the training will be.

/// The number that means "no limit".
pub(crate) const NO_LIMIT: u64 = u64::MAX;

/// How long the training will be, for schedules that need to know.
/// ```
/// use fulmen_nn::optim::{AdamW, Optimizer};
/// use fulmen_nn::schedule::OneCycle;
/// use fulmen_trainer::Plan;
///
/// fn configure_optimizers(plan: &Plan) -> Box<dyn Optimizer> {
///     Box::new(AdamW::new(OneCycle::new(1e-3, plan.total_steps)))
/// }
///
/// let plan = Plan { steps_per_epoch: 100, max_epochs: 3, total_steps: 300 };
/// configure_optimizers(&plan);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The number of optimizer steps per epoch. With an endless loader, it is the number of steps
    /// of the run. If the accumulation changes, it is the number of steps in the first epoch.
    pub steps_per_epoch: u64,
    /// The number of epochs; the last may be partial. `u64::MAX` if there is no limit but `max_time`.
    pub max_epochs: u64,
    /// The number of optimizer steps in total (Lightning's `estimated_stepping_batches`).
    /// `u64::MAX` if there is no limit but `max_time`; a schedule over that many steps stays at its
    /// initial value.
    pub total_steps: u64,
}

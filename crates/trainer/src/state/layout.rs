//! [`StateLayout`]: the tensors of a training state, their roles and their shardings.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::ops::Index;
use std::panic::Location;
use std::sync::Arc;

use fulmen_nn::optim::{FirstValue, Optimizer as _};
use fulmen_nn::{Module, Parameter};
use fulmen_tensor::internal::{known_value, repeated_element};
use fulmen_tensor::{
    DType, DeviceArray, Literal, Mesh, Runtime, Sharding, Tensor, TensorType, Variable,
};

use super::names::{self, EVALUATED};
use super::rows;
use crate::Result;
use crate::rules::step_rule::StepRule;
use crate::rules::sum_dtype::sum_dtype;
use crate::state::kernel_order::with_output_channels_last;
use crate::step_config::StepConfig;
use crate::step_config::optimizers::Optimizers;
use crate::step_config::phases::Phases;

/// The index of a tensor among the entries of the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct EntryId(usize);

impl EntryId {
    pub(crate) fn index(self) -> usize {
        self.0
    }
}

/// A tensor of the state.
#[derive(Clone)]
pub(crate) struct Entry {
    pub(crate) name: String,
    /// The names of the rows along the first axis, if the tensor is [joined](super::rows).
    pub(super) rows: Vec<String>,
    pub(crate) ty: TensorType,
    pub(crate) origin: Origin,
    /// Its sharding between steps.
    pub(crate) sharding: Sharding,
}

/// Where the value before the first step comes from.
#[derive(Clone)]
pub(crate) enum Origin {
    /// A parameter or buffer of the module, or one per row. Before each use, it is gathered to the
    /// sharding `gathered` of a row; without one, it is used in its own sharding.
    Module { variables: Vec<Variable>, gathered: Option<Sharding> },
    /// A tensor that starts as the module's value, such as its evaluated value.
    Copy(Vec<Variable>),
    /// A tensor of the optimizer or the Trainer, with the first value of each row.
    Own(Tensor),
}

impl Entry {
    /// A tensor of the optimizer or the Trainer.
    fn own(name: String, first: Tensor, sharding: Sharding) -> Entry {
        Entry {
            name,
            rows: Vec::new(),
            ty: first.ty().clone(),
            origin: Origin::Own(first),
            sharding,
        }
    }

    /// The first value of a tensor of the optimizer or the Trainer, if it is a constant or a value on
    /// the host. For a joined tensor, the value of each row.
    pub(crate) fn known_first(&self) -> Option<Literal> {
        let Origin::Own(first) = &self.origin else { return None };
        known_value(first).filter(|value| *value.ty() == self.row_type())
    }

    /// The module's variables that this entry holds.
    pub(crate) fn variables(&self) -> &[Variable] {
        if let Origin::Module { variables, .. } = &self.origin { variables } else { &[] }
    }

    /// The values that a fit starts with, one per row, before they are converted to the type of the
    /// entry.
    fn sources(&self) -> Vec<Tensor> {
        match &self.origin {
            Origin::Module { variables, .. } | Origin::Copy(variables) => {
                variables.iter().map(Variable::get).collect()
            }
            Origin::Own(first) => vec![first.clone(); self.names().len()],
        }
    }

    /// The value that a fit starts with.
    pub(super) fn value(&self) -> Tensor {
        let converted = |source: &Tensor| source.to_dtype_on_host(self.ty.dtype);
        match &self.origin {
            Origin::Own(first) => first.broadcast_to(&self.ty.shape),
            _ => self.stack(&self.sources().iter().map(converted).collect::<Vec<_>>()),
        }
    }

    /// The value that a fit starts with, if the host supplies it: it is in memory or in a file, or it
    /// is a large value that repeats a number and the devices are CPUs. A process of a virtual pod
    /// computes programs for all devices, and would have such a value for all of them.
    pub(super) fn on_host(&self, is_cpu: bool) -> Option<HostEntry<'_>> {
        if let Origin::Own(first) = &self.origin
            && is_cpu
            && self.ty.size_in_bytes() >= LARGE_BYTES
            && let Some(element) = repeated_element(first)
        {
            return Some(HostEntry { entry: self, values: HostValues::Repeated(element) });
        }
        let row = self.row_type();
        let sources = self.sources();
        let fits = |source: &Tensor| {
            source.is_on_host()
                && source.shape() == &row.shape
                && (source.dtype() == row.dtype
                    || source.dtype().is_float() && row.dtype.is_float())
        };
        sources.iter().all(fits).then(|| {
            let rows = sources.iter().map(|source| source.to_dtype_on_host(row.dtype)).collect();
            HostEntry { entry: self, values: HostValues::Rows(rows) }
        })
    }
}

/// The size from which the host supplies the first values of the optimizer's state to CPUs.
const LARGE_BYTES: usize = 1 << 20;

/// An entry whose value is on the host.
pub(super) struct HostEntry<'a> {
    entry: &'a Entry,
    values: HostValues,
}

enum HostValues {
    /// The value of each row.
    Rows(Vec<Tensor>),
    /// The bytes of the number that all elements are.
    Repeated(Arc<[u8]>),
}

impl HostEntry<'_> {
    /// Copies to each device the part that it holds. Of a value in a file, only the parts for the
    /// devices of this process are read, one after the other.
    pub(super) fn to_devices(&self, runtime: &Runtime) -> Result<DeviceArray> {
        let HostEntry { entry, values } = self;
        runtime.parts_to_devices(&entry.ty, &entry.sharding, |block| {
            let rows = match values {
                HostValues::Rows(rows) => rows,
                HostValues::Repeated(element) => {
                    return Ok(element.repeat(block.size.iter().product()).into());
                }
            };
            let row_block = entry.row_block(block);
            if let [single] = &rows[..] {
                return Ok(single.host_block(&row_block)?.unwrap_or_default());
            }
            let count: usize = block.size.iter().product();
            let mut elements = Vec::with_capacity(count * entry.ty.dtype.size_in_bytes());
            for row in rows {
                elements.extend_from_slice(&row.host_block(&row_block)?.unwrap_or_default());
            }
            Ok(Cow::Owned(elements))
        })
    }
}

/// The tensors of a training state, in the order in which a step takes them: the module's, the
/// optimizers', then the Trainer's.
pub(crate) struct StateLayout {
    entries: Vec<Entry>,
    /// The number of entries of the module.
    module_len: usize,
    /// The slots of each optimizer.
    pub(crate) optimizers: Vec<OptimizerSlots>,
    pub(crate) evaluated: Vec<Evaluated>,
    /// The number of updates that the evaluated weights count.
    pub(crate) evaluated_updates: EntryId,
    pub(crate) counters: Counters,
    pub(crate) phases: Phases,
}

/// The entries of an optimizer. Each parameter belongs to one optimizer.
pub(crate) struct OptimizerSlots {
    /// The parameters that it updates.
    pub(crate) params: Vec<ParamSlots>,
    /// The number of its steps.
    pub(crate) updates: EntryId,
    /// The steps of parameters that were frozen at first, one counter for each frozen part.
    pub(crate) frozen_parts: Vec<EntryId>,
    /// The loss of the optimizer's latest step, if the optimizer skips steps.
    pub(crate) loss: Option<EntryId>,
    /// The state of each rule of the step, in the rule's order.
    pub(crate) step_rules: Vec<Vec<EntryId>>,
    /// The state of each rule around the optimizer, in the rule's order.
    pub(crate) rules: Vec<Vec<EntryId>>,
}

/// A parameter that an optimizer updates, with its further entries.
pub(crate) struct ParamSlots {
    pub(crate) param: EntryId,
    /// The optimizer's state for it, in the optimizer's order.
    pub(crate) slots: Vec<EntryId>,
    /// The state of each rule around the optimizer for it, in the rule's order.
    pub(crate) rules: Vec<Vec<EntryId>>,
    /// The state of each rule of the step for it, in the rule's order.
    pub(crate) step_rules: Vec<Vec<EntryId>>,
    /// The index of the frozen part that has the parameter, if it is frozen at first.
    pub(crate) frozen_part: Option<usize>,
    /// The line that asked for sparse gradients.
    pub(crate) sparse: Option<&'static Location<'static>>,
}

impl ParamSlots {
    /// The entries that the optimizer changes: the parameter and its state.
    pub(crate) fn changed(&self) -> impl Iterator<Item = EntryId> {
        [self.param].into_iter().chain(self.slots.iter().copied())
    }

    /// The entries that the rules around the optimizer change.
    pub(crate) fn rule_state(&self) -> impl Iterator<Item = EntryId> {
        self.rules.iter().flatten().copied()
    }
}

/// The value that is evaluated instead of a module's value.
pub(crate) struct Evaluated {
    pub(crate) source: EntryId,
    pub(crate) evaluated: EntryId,
}

/// The counters of a step.
pub(crate) struct Counters {
    /// Finished batches.
    pub(crate) step: EntryId,
    /// The batch within its epoch and the number of finished epochs, if something depends on the
    /// end of an epoch.
    pub(crate) epoch: Option<[EntryId; 2]>,
    /// The steps of the optimizer. With several optimizers, the steps of the training.
    pub(crate) updates: EntryId,
    /// Finished steps, if they take several batches.
    pub(crate) steps: Option<EntryId>,
    /// The host's factor on the learning rates, if a callback changes them.
    pub(crate) lr_factor: Option<EntryId>,
    /// The number of steps that changed the evaluated weights.
    pub(crate) evaluated: Option<EntryId>,
}

impl Index<EntryId> for StateLayout {
    type Output = Entry;

    fn index(&self, id: EntryId) -> &Entry {
        &self.entries[id.0]
    }
}

impl StateLayout {
    /// Lists the entries. `scanned` holds the module's variables that the step stacks for scans.
    pub(crate) fn new(
        module: &dyn Module,
        optimizers: &Optimizers,
        config: &StepConfig,
        phases: Phases,
        scanned: &[Vec<Variable>],
    ) -> StateLayout {
        let parameters = module.parameters();
        let module_entries = of_module(module, config);
        let groups =
            rows::groups(&parameters, &module_entries, scanned, optimizers, &phases, config);
        let list = rows::join(module_entries, &groups);
        let module_len = list.len();
        let mut entries = Entries { list, optimizers, config, phases: &phases };
        let stored: Vec<_> = groups.iter().map(|group| &parameters[group[0]]).collect();
        let params = entries.add_params(&stored);
        let evaluated = entries.add_evaluated(module_len, groups.len(), &params);
        // Count the updates even if every step is an optimizer step: a later run may resume from
        // this one with other settings.
        let updates = entries.counter(names::UPDATES);
        let optimizers = entries.add_optimizers(params, updates);
        let counters = entries.add_counters(updates);
        let rule = config.evaluated.as_ref();
        let counts_own = rule.is_some_and(|rule| rule.counts_updates_of_one_optimizer());
        let is_evaluated =
            |param: &ParamSlots| evaluated.iter().any(|own| own.source == param.param);
        let evaluated_updates = optimizers
            .iter()
            .filter(|_| counts_own)
            .find(|slots| slots.params.iter().any(is_evaluated))
            .map_or(updates, |slots| slots.updates);
        StateLayout {
            entries: entries.list,
            module_len,
            optimizers,
            evaluated,
            evaluated_updates,
            counters,
            phases,
        }
    }

    pub(crate) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = EntryId> + use<> {
        (0..self.entries.len()).map(EntryId)
    }

    /// The entries of the module: its parameters, then its buffers.
    pub(crate) fn module(&self) -> &[Entry] {
        &self.entries[..self.module_len]
    }

    /// The bytes of some entries on each device.
    pub(crate) fn device_bytes(&self, ids: impl IntoIterator<Item = EntryId>, mesh: &Mesh) -> u64 {
        let shard = |entry: &Entry| {
            entry.sharding.shard_shape(mesh, &entry.ty.shape).map(|shape| shape.num_elements())
        };
        let bytes =
            |entry: &Entry| shard(entry).unwrap_or_default() * entry.ty.dtype.size_in_bytes();
        ids.into_iter().map(|id| bytes(&self[id]) as u64).sum()
    }

    /// The entries that fit into `room` bytes on each device, chosen largest first.
    pub(crate) fn fitting(&self, room: u64, mesh: &Mesh) -> Vec<EntryId> {
        let mut left = room;
        let mut ids: Vec<_> = self.ids().map(|id| (self.device_bytes([id], mesh), id)).collect();
        ids.sort_by_key(|&(bytes, id)| (Reverse(bytes), id));
        ids.retain(|(bytes, _)| left.checked_sub(*bytes).map(|rest| left = rest).is_some());
        ids.sort_by_key(|&(_, id)| id);
        ids.into_iter().map(|(_, id)| id).collect()
    }

    /// Whether the entry with this name counts steps of an optimizer.
    pub(crate) fn counts_updates(&self, name: &str) -> bool {
        let own =
            |slots: &OptimizerSlots| [slots.frozen_parts.clone(), vec![slots.updates]].concat();
        let ids = self.optimizers.iter().flat_map(own);
        ids.chain([self.counters.updates]).any(|id| self[id].name == name)
    }

    /// Whether an optimizer changes the entry.
    pub(crate) fn is_trained(&self, id: EntryId) -> bool {
        self.optimizers
            .iter()
            .flat_map(|optimizer| &optimizer.params)
            .any(|slots| slots.param == id)
    }

    /// Whether an entry is the state of a rule of the step for a parameter.
    pub(crate) fn is_state_of_rule(&self, id: EntryId) -> bool {
        let mut params = self.optimizers.iter().flat_map(|optimizer| &optimizer.params);
        params.any(|slots| slots.step_rules.iter().flatten().any(|&own| own == id))
    }

    /// For each entry of the module, the entry to validate with and to save: its evaluated value, or
    /// itself.
    pub(crate) fn evaluated_entries(&self) -> Vec<EntryId> {
        let mut ids: Vec<EntryId> = self.ids().take(self.module_len).collect();
        for Evaluated { source, evaluated } in &self.evaluated {
            ids[source.0] = *evaluated;
        }
        ids
    }

    /// The names of each entry in a file. Evaluated values have the module's names there. A joined
    /// entry has the names of its rows.
    pub(crate) fn names_in_file(&self) -> Vec<Vec<String>> {
        let mut all: Vec<Vec<String>> =
            self.entries.iter().map(|entry| entry.names().to_vec()).collect();
        for Evaluated { source, evaluated } in &self.evaluated {
            all[evaluated.0] = self[*source].names().to_vec();
            all[source.0] = self[*source]
                .names()
                .iter()
                .map(|name| format!("{}{name}", names::CURRENT))
                .collect();
        }
        all
    }

    /// Whether any of the module's values are joined.
    pub(crate) fn is_joined(&self) -> bool {
        self.module().iter().any(Entry::is_joined)
    }
}

/// The entries listed so far, and what they are listed for.
struct Entries<'a> {
    list: Vec<Entry>,
    optimizers: &'a Optimizers,
    config: &'a StepConfig,
    phases: &'a Phases,
}

impl Entries<'_> {
    fn add(&mut self, entry: Entry) -> EntryId {
        self.list.push(entry);
        EntryId(self.list.len() - 1)
    }

    fn scalar(&mut self, name: &str, first: Tensor) -> EntryId {
        self.add(Entry::own(name.to_owned(), first, Sharding::replicated()))
    }

    fn counter(&mut self, name: &str) -> EntryId {
        self.scalar(name, Tensor::zeros(DType::I32, []))
    }

    /// Adds the state of a rule itself.
    fn add_scalars(
        &mut self,
        state: Vec<(&'static str, Tensor)>,
        name: impl Fn(&str) -> String,
    ) -> Vec<EntryId> {
        state.into_iter().map(|(slot, first)| self.scalar(&name(slot), first)).collect()
    }

    /// Adds the state for the parameters that each optimizer trains. `stored` are the parameters
    /// at the head of the entries, or the first of those that an entry joins.
    fn add_params(&mut self, stored: &[&(String, Parameter)]) -> Vec<Vec<ParamSlots>> {
        let optimizers = self.optimizers;
        let mut params: Vec<Vec<ParamSlots>> =
            optimizers.members().iter().map(|_| Vec::new()).collect();
        for (i, (name, parameter)) in stored.iter().enumerate() {
            let Some(optimizer) = optimizers.training(name, parameter) else { continue };
            let ty = parameter.ty();
            let mut state = |slot: &str, first: FirstValue| {
                self.add_parameter_state(EntryId(i), parameter, slot, first)
            };
            let slots = optimizers
                .state(name, &ty)
                .into_iter()
                .map(|(slot, first)| state(slot, FirstValue::Value(first)))
                .collect();
            let mut rules = Vec::new();
            for rule in optimizers.members()[optimizer].rules.iter() {
                let slots = rule.init_parameter(name, &ty).into_iter();
                let slots =
                    slots.map(|(slot, first)| state(&names::of_rule(rule.name(), slot), first));
                rules.push(slots.collect());
            }
            params[optimizer].push(ParamSlots {
                param: EntryId(i),
                slots,
                rules,
                step_rules: Vec::new(),
                frozen_part: self.phases.frozen_part_of(name),
                sparse: parameter.sparse_gradient_location(),
            });
        }
        for slots in params.iter_mut().flatten() {
            for rule in &self.config.rules {
                slots.step_rules.push(self.add_state_of_rule(slots.param, &**rule));
            }
        }
        params
    }

    /// Adds the evaluated values of the module's, which are the first `module_len` entries. Its
    /// parameters are the first `parameters_len`.
    fn add_evaluated(
        &mut self,
        module_len: usize,
        parameters_len: usize,
        params: &[Vec<ParamSlots>],
    ) -> Vec<Evaluated> {
        let mut evaluated = Vec::new();
        let Some(rule) = &self.config.evaluated else { return evaluated };
        for source in (0..module_len).map(EntryId) {
            let entry = &self.list[source.0];
            let Origin::Module { variables, .. } = &entry.origin else { continue };
            let trained = params.iter().flatten().any(|slots| slots.param == source);
            let is_buffer = source.0 >= parameters_len;
            // The rows of a joined entry are evaluated all or not at all.
            if rule.has(&entry.names()[0], &entry.ty, trained, is_buffer) {
                let name = |name: &str| format!("{EVALUATED}{name}");
                let first = Origin::Copy(variables.clone());
                let entry = entry.with_same_shape(name, sum_dtype(entry.ty.dtype), first);
                evaluated.push(Evaluated { source, evaluated: self.add(entry) });
            }
        }
        evaluated
    }

    /// Adds the state of each optimizer. `updates` counts the steps of a single one.
    fn add_optimizers(
        &mut self,
        params: Vec<Vec<ParamSlots>>,
        updates: EntryId,
    ) -> Vec<OptimizerSlots> {
        let mut all = Vec::new();
        let optimizers = self.optimizers;
        for (i, (member, params)) in optimizers.members().iter().zip(params).enumerate() {
            let own = |name: &str| names::of_optimizer(name, &member.name);
            let updates =
                if optimizers.is_single() { updates } else { self.counter(&own(names::UPDATES)) };
            let mut frozen_parts = Vec::new();
            for part in self.phases.frozen_parts() {
                let name = names::of_rule_state(&*part.rule, &part.pattern);
                frozen_parts.push(self.counter(&own(&name)));
            }
            let skips = optimizers.cadence(i) > 1;
            let loss = skips.then(|| self.scalar(&own(names::LOSS), Tensor::scalar(0.0f32)));
            let mut step_rules = Vec::new();
            for rule in &self.config.rules {
                let name = |slot: &str| own(&names::of_rule_state(&**rule, slot));
                step_rules.push(self.add_scalars(rule.init(), name));
            }
            let mut rules = Vec::new();
            for rule in member.rules.iter() {
                let name = |slot: &str| names::own_state_of_rule(rule.name(), slot, &member.name);
                rules.push(self.add_scalars(rule.init(), name));
            }
            all.push(OptimizerSlots { params, updates, frozen_parts, loss, step_rules, rules });
        }
        all
    }

    /// Adds the counters of a step. `updates` is one of them.
    fn add_counters(&mut self, updates: EntryId) -> Counters {
        let takes_several = self.config.batches_per_step.takes_several();
        let rule = self.config.evaluated.as_ref();
        let counts_epochs = takes_several
            || !self.phases.frozen_parts().is_empty()
            || rule.is_some_and(|rule| rule.counts_epochs());
        let scales = self.config.scales_learning_rate;
        Counters {
            updates,
            steps: takes_several.then(|| self.counter(names::FINISHED_STEPS)),
            epoch: counts_epochs
                .then(|| [names::BATCH, names::EPOCHS].map(|name| self.counter(name))),
            evaluated: rule.map(|rule| self.counter(&names::evaluated_steps(&**rule))),
            lr_factor: scales.then(|| self.scalar(names::LR_FACTOR, Tensor::scalar(1.0f32))),
            step: self.counter(names::STEP),
        }
    }

    /// Adds the state of an optimizer or a rule for a parameter.
    fn add_parameter_state(
        &mut self,
        id: EntryId,
        parameter: &Parameter,
        slot: &str,
        first: FirstValue,
    ) -> EntryId {
        let param = &self.list[id.0];
        let name = |parameter: &str| names::slot(slot, parameter);
        let first = match first {
            FirstValue::Value(first) => first,
            FirstValue::Parameter => {
                let dtype = sum_dtype(param.ty.dtype);
                let origin = Origin::Copy(param.variables().to_vec());
                return self.add(param.with_same_shape(name, dtype, origin));
            }
        };
        // Elementwise state is sharded like the parameter.
        let is_elementwise = *first.shape() == parameter.ty().shape
            && (param.is_joined() || parameter.sharding().is_some() || parameter.axes().is_some());
        let dtype = first.dtype();
        let entry = if is_elementwise {
            param.with_same_shape(name, dtype, Origin::Own(first))
        } else {
            let sharding = sharding_by_strategy(first.ty(), &Sharding::replicated(), self.config);
            Entry::own(name(&param.name), first, sharding)
        };
        self.add(entry)
    }

    /// Adds the state of a rule of the step for a parameter. It is sharded like the parameter.
    fn add_state_of_rule(&mut self, id: EntryId, rule: &dyn StepRule) -> Vec<EntryId> {
        let param = self.list[id.0].clone();
        let mut state = Vec::new();
        for (slot, first) in rule.init_parameter(&param.row_type()) {
            let name = |parameter: &str| names::of_rule_state_for(rule, slot, parameter);
            let dtype = first.dtype();
            state.push(self.add(param.with_same_shape(name, dtype, Origin::Own(first))));
        }
        state
    }
}

/// A parameter's sharding, from the user, the rules for axes or the strategy, and the sharding to
/// which it is gathered before each use.
fn sharding_of(parameter: &Parameter, config: &StepConfig) -> (Sharding, Option<Sharding>) {
    // The model computes with the user's sharding (tensor parallelism), so don't gather.
    if let Some(own) = parameter.sharding() {
        return (own, None);
    }
    // `check_shardings` reports rules that do not fit.
    let used = config.sharding_by_rules(parameter).and_then(Result::ok);
    let used = used.unwrap_or_else(Sharding::replicated);
    let sharding = sharding_by_strategy(&parameter.ty(), &used, config);
    // A step reads only some rows of a table with sparse gradients.
    let is_gathered =
        sharding.axes() != used.axes() && parameter.sparse_gradient_location().is_none();
    (sharding, is_gathered.then_some(used))
}

/// The sharding of a trained tensor that is used in the sharding `used`, or of optimizer state.
fn sharding_by_strategy(ty: &TensorType, used: &Sharding, config: &StepConfig) -> Sharding {
    let sharding = config.options.strategy.parameter(ty, &config.mesh, used);
    if config.stores_output_channels_last {
        with_output_channels_last(sharding, ty)
    } else {
        sharding
    }
}

/// The entries of a module: its parameters and its buffers.
pub(crate) fn of_module(module: &dyn Module, config: &StepConfig) -> Vec<Entry> {
    let entry = |name, variable: Variable, sharding, gathered| Entry {
        name,
        rows: Vec::new(),
        ty: variable.ty(),
        origin: Origin::Module { variables: vec![variable], gathered },
        sharding,
    };
    let parameters = module.parameters().into_iter().map(|(name, p)| {
        let (sharding, gathered) = sharding_of(&p, config);
        entry(name, p.variable(), sharding, gathered)
    });
    let buffers = module
        .buffers()
        .into_iter()
        .map(|(name, b)| entry(name, b.variable().clone(), Sharding::replicated(), None));
    parameters.chain(buffers).collect()
}

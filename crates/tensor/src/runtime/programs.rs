//! [`Programs`]: the compiled programs that a runtime keeps, up to a limit.
//!
//! A [`Compiled`](crate::Compiled) has its program also when it is no longer kept here.

use std::collections::HashMap;
use std::fs;
use std::num::NonZeroUsize;
use std::sync::Arc;

use fulmen_pjrt::LoadedExecutable;

/// The key of a compiled program.
#[derive(PartialEq, Eq, Hash)]
pub(super) struct CompileKey {
    /// The program's text without locations.
    pub(super) text: String,
    pub(super) device_ids: Vec<i32>,
}

/// How many programs are kept.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    /// A loop that evaluates more different programs than this would compile each of them again.
    /// Usual loops have a few.
    pub(super) programs: NonZeroUsize,
    /// The number of the process's memory mappings above which programs are dropped. A program for
    /// a CPU takes one or more for each kernel, so a large one takes hundreds. A process that needs
    /// more than Linux allows dies.
    pub(super) mappings: usize,
}

impl Limits {
    /// 1,024 programs, and half of the mappings that the system allows: 32,765 on most machines.
    pub(super) fn of_system() -> Limits {
        let allowed = fs::read_to_string("/proc/sys/vm/max_map_count")
            .ok()
            .and_then(|text| text.trim().parse::<usize>().ok());
        Limits {
            programs: NonZeroUsize::new(1024).unwrap_or(NonZeroUsize::MIN),
            mappings: allowed.map_or(usize::MAX, |allowed| allowed / 2),
        }
    }
}

/// Compiled programs. The least recently used ones are dropped.
pub(super) struct Programs {
    kept: HashMap<CompileKey, Kept>,
    limits: Limits,
    /// The number of uses of all programs.
    uses: u64,
    /// How many more programs are kept before the mappings are counted again.
    uncounted: usize,
}

struct Kept {
    program: Arc<LoadedExecutable>,
    /// The number of uses of all programs when this one was used last.
    last_use: u64,
}

/// More mappings than a program takes.
const MANY_MAPPINGS: usize = 1024;

impl Programs {
    pub(super) fn new(limits: Limits) -> Programs {
        Programs { kept: HashMap::new(), limits, uses: 0, uncounted: 0 }
    }

    pub(super) fn contains(&self, key: &CompileKey) -> bool {
        self.kept.contains_key(key)
    }

    pub(super) fn get(&mut self, key: &CompileKey) -> Option<Arc<LoadedExecutable>> {
        let kept = self.kept.get_mut(key)?;
        self.uses += 1;
        kept.last_use = self.uses;
        Some(kept.program.clone())
    }

    /// Keeps a program. Returns those that are no longer kept; the caller frees them without the
    /// lock.
    pub(super) fn insert(
        &mut self,
        key: CompileKey,
        program: Arc<LoadedExecutable>,
    ) -> Vec<Arc<LoadedExecutable>> {
        // The new one stays.
        let most = if self.too_many_mappings() { self.kept.len() / 2 + 1 } else { usize::MAX };
        self.uses += 1;
        let kept = Kept { program, last_use: self.uses };
        let replaced = self.kept.insert(key, kept);
        let mut dropped: Vec<_> = replaced.into_iter().map(|kept| kept.program).collect();
        dropped.extend(self.drop_down_to(most.min(self.limits.programs.get())));
        dropped
    }

    /// Keeps only this number of programs, those that were used last.
    fn drop_down_to(&mut self, most: usize) -> Vec<Arc<LoadedExecutable>> {
        let excess = self.kept.len().saturating_sub(most);
        if excess == 0 {
            return Vec::new();
        }
        let mut uses: Vec<u64> = self.kept.values().map(|kept| kept.last_use).collect();
        uses.sort_unstable();
        let newest_dropped = uses[excess - 1];
        let dropped = self.kept.extract_if(|_, kept| kept.last_use <= newest_dropped);
        dropped.map(|(_, kept)| kept.program).collect()
    }

    /// Whether programs must go. Counting takes time, so it waits until the next programs could take
    /// half of the limit more than it. The system allows twice the limit.
    fn too_many_mappings(&mut self) -> bool {
        if self.uncounted > 0 {
            self.uncounted -= 1;
            return false;
        }
        let mappings = mappings();
        let most = self.limits.mappings.saturating_add(self.limits.mappings / 2);
        self.uncounted = most.saturating_sub(mappings) / MANY_MAPPINGS;
        mappings > self.limits.mappings
    }
}

/// The number of this process's memory mappings; 0 where the system has no such list. This takes
/// 13 ms for 30,000.
fn mappings() -> usize {
    fs::read("/proc/self/maps").map_or(0, |maps| maps.iter().filter(|&&byte| byte == b'\n').count())
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Weak};

    use super::super::{Runtime, Shared};
    use super::{Limits, NonZeroUsize, mappings};
    use crate::{
        Accelerator, Argument, DType, Devices, Function, Literal, Sharding, Tensor, TensorType,
        fori_loop, tests_notes,
    };

    fn runtime(devices: usize, programs: usize, mappings: usize) -> Runtime {
        let runtime = Runtime::open(Accelerator::Cpu, &Devices::from(devices)).unwrap();
        let options = runtime.shared.options.clone();
        let limits = Limits { programs: NonZeroUsize::new(programs).unwrap(), mappings };
        Runtime { shared: Shared::new(runtime.client().clone(), options, limits), ..runtime }
    }

    fn kept(runtime: &Runtime) -> usize {
        runtime.shared.compiled.lock().unwrap().kept.len()
    }

    #[test]
    fn the_least_recently_used_programs_are_dropped() {
        tests_notes::collect();
        let runtime = runtime(1, 2, usize::MAX);
        let compiled = || runtime.metrics().value("UncachedCompile");
        let mut line = 0;
        // More often than a line may compile new programs without a note.
        for round in 0..3 {
            for n in 1..=4 {
                line = line!() + 1;
                let ones = runtime.eval(Tensor::ones(DType::F32, [n]).neg()).unwrap();
                assert_eq!(ones.to_f64(), vec![-1.0; n]);
                assert_eq!(compiled(), 4 * round + n as u64);
                assert!(kept(&runtime) <= 2);
            }
        }
        assert_eq!(tests_notes::about(&format!("{}:{line}. ", file!())), [""; 0]);
        // The third program was used last, so the fourth is dropped for a new one.
        for (n, count) in [(3, 12), (5, 13), (3, 13), (4, 14)] {
            runtime.eval(Tensor::ones(DType::F32, [n]).neg()).unwrap();
            assert_eq!(compiled(), count, "{n}");
        }
    }

    #[test]
    fn a_program_that_is_held_elsewhere_lives_on() {
        let runtime = runtime(1, 2, usize::MAX);
        let ty = TensorType::new(DType::F32, [2]);
        let square = Function::trace("square", ty, |x| &x * &x);
        let square = runtime.compile(&square).unwrap();
        let programs = runtime.shared.compiled.lock().unwrap();
        let kept = programs.kept.values().next().unwrap();
        let program: Weak<_> = Arc::downgrade(&kept.program);
        drop(programs);
        for n in 1..=4 {
            runtime.eval(Tensor::ones(DType::F32, [n]).neg()).unwrap();
        }
        let x = Literal::from_slice(&[3.0f32, 4.0], [2]).unwrap();
        let x = runtime.to_devices(&x, &Sharding::replicated()).unwrap();
        let outputs = square.call(vec![Argument::Borrow(&x)]).unwrap();
        let values = runtime.read(&[&outputs.arrays[0]]).unwrap().wait().unwrap();
        assert_eq!(values[0].to_f64(), [9.0, 16.0]);
        assert!(program.upgrade().is_some());
        drop(square);
        assert!(program.upgrade().is_none());
    }

    #[test]
    fn programs_are_dropped_before_the_system_runs_out_of_mappings() {
        let before = mappings();
        let runtime = runtime(1, 100, before + 40);
        for n in 2..14 {
            let x = Tensor::from_slice(&vec![1.0f32; n], [n]);
            runtime.eval(x.sin().sort(0, false).0.cumsum(0).softmax(0)).unwrap();
        }
        assert!(kept(&runtime) < 12, "{}", kept(&runtime));
    }

    #[test]
    fn a_program_may_be_dropped_while_it_runs() {
        // A single CPU device runs a program before `call` returns.
        let runtime = runtime(8, 1, usize::MAX);
        let ty = TensorType::new(DType::F32, [8]);
        // Each step waits for all devices.
        let long = Function::trace("long", ty, |x| {
            fori_loop(0, 1_500, x, |_, x| &x * 0.5 + x.sum_all() * 0.0)
        });
        let split = Sharding::new([Some("data")]);
        let long = runtime.compile(&long.shard_parameter(0, split.clone())).unwrap();
        let ones = Literal::from_slice(&[1.0f32; 8], [8]).unwrap();
        let x = runtime.to_devices(&ones, &split).unwrap();
        let outputs = long.call(vec![Argument::Borrow(&x)]).unwrap();
        runtime.shared.compiled.lock().unwrap().kept.clear();
        drop(long);
        assert!(!outputs.completion.is_ready(), "it ended too early");
        outputs.completion.wait().unwrap();
        let values = runtime.read(&[&outputs.arrays[0]]).unwrap().wait().unwrap();
        assert_eq!(values[0].to_f64(), [0.0; 8]);
    }
}

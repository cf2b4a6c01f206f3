//! The tasks of the members of a pod.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use std::{env, fs, thread};

use fulmen_pjrt::{
    Argument, Buffer, Client, CompileOptions, ElementType, Execution, KeyValueStore,
    LoadedExecutable, Plugin, Result,
};

use crate::processes::{FOLDER, FolderStore, INDEX, TASK, output};

/// One process of a pod.
pub(crate) struct Member {
    pub(crate) client: Client,
    store: Arc<FolderStore>,
    index: usize,
    folder: PathBuf,
}

/// The process that the tests start.
#[test]
#[ignore = "a part in the other tests"]
fn member() {
    let Some(task) = env::var_os(TASK) else { return };
    let folder = PathBuf::from(env::var_os(FOLDER).unwrap());
    let index: usize = env::var(INDEX).unwrap().parse().unwrap();
    let store = Arc::new(FolderStore(folder.clone()));
    let shape = env::var("FULMEN_VIRTUAL_POD").unwrap();
    let count: i64 = shape.split_once('x').unwrap().0.parse().unwrap();
    let options = [("node_id", (index as i64).into()), ("num_nodes", count.into())];
    let plugin = Plugin::load(fulmen_virtual_pod::library().unwrap()).unwrap();
    let client = plugin.create_client_with(&options, store.clone()).unwrap();
    let member = Member { client, store, index, folder: folder.clone() };
    let task = task.into_string().unwrap();
    let said = match task.as_str() {
        "values" => member.values(),
        "early" => member.early(),
        "program" | "body" | "order" | "origin" | "hang" => member.mistake(&task),
        "lost" => member.lost(),
        _ => panic!("unknown task {task}"),
    };
    drop(member);
    assert_eq!(live_objects(), 0, "objects are alive after everything was dropped");
    fs::write(output(&folder, index), said).unwrap();
}

/// The number of objects that are alive in the plugin.
fn live_objects() -> usize {
    let path = fulmen_virtual_pod::library().unwrap();
    let path = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: the plugin is loaded already, and its function has this type.
    unsafe {
        let library = libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
        let symbol = libc::dlsym(library, c"fulmen_virtual_pod_live_objects".as_ptr());
        assert!(!symbol.is_null());
        let count: extern "C" fn() -> usize = std::mem::transmute(symbol);
        count()
    }
}

pub(crate) fn floats(buffer: &Buffer) -> Result<Vec<f32>> {
    let bytes = buffer.read()?.wait()?;
    Ok(bytes.chunks_exact(4).map(|b| f32::from_ne_bytes(b.try_into().unwrap())).collect())
}

impl Member {
    fn all(&self) -> usize {
        self.client.devices().len()
    }

    /// Scales a sharded vector by the sum over all devices, and adds the replicated `shift`.
    fn step(&self, name: &str) -> LoadedExecutable {
        self.step_with(name, "sine")
    }

    fn step_with(&self, name: &str, operation: &str) -> LoadedExecutable {
        let all = self.all();
        let len = 2 * all;
        let program = format!(
            r#"module @{name} {{
              sdy.mesh @mesh = <["data"={all}]>
              func.func public @main(
                %x: tensor<{len}xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"data"}}]>, tf.aliasing_output = 0 : i32}},
                %shift: tensor<f32> {{sdy.sharding = #sdy.sharding<@mesh, []>}}
              ) -> (tensor<{len}xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"data"}}]>}},
                    tensor<f32> {{sdy.sharding = #sdy.sharding<@mesh, []>}}) {{
                %zero = stablehlo.constant dense<0.0> : tensor<f32>
                %sum = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0]
                  : (tensor<{len}xf32>, tensor<f32>) -> tensor<f32>
                %mean = stablehlo.{operation} %sum : tensor<f32>
                %all = stablehlo.broadcast_in_dim %mean, dims = [] : (tensor<f32>) -> tensor<{len}xf32>
                %scaled = stablehlo.multiply %x, %all : tensor<{len}xf32>
                %shifts = stablehlo.broadcast_in_dim %shift, dims = [] : (tensor<f32>) -> tensor<{len}xf32>
                %y = stablehlo.add %scaled, %shifts : tensor<{len}xf32>
                return %y, %sum : tensor<{len}xf32>, tensor<f32>
              }}
            }}"#
        );
        self.client.compile(&program, &CompileOptions::new().partitions(all)).unwrap()
    }

    /// The part of a vector over all devices that each of this process's devices holds.
    fn vector(&self) -> Vec<Buffer> {
        let part = |device: &fulmen_pjrt::Device| {
            let id = device.id() as f32;
            let bytes = [0.1 + id, 0.7 - id / 3.0].map(f32::to_ne_bytes).concat();
            self.client.buffer_from_host(&bytes, ElementType::F32, &[2], device).unwrap()
        };
        self.client.addressable_devices().iter().map(part).collect()
    }

    fn scalars(&self, value: f32) -> Vec<Buffer> {
        let put = |device: &fulmen_pjrt::Device| {
            let bytes = value.to_ne_bytes();
            self.client.buffer_from_host(&bytes, ElementType::F32, &[], device).unwrap()
        };
        self.client.addressable_devices().iter().map(put).collect()
    }

    /// Launches a program that donates `x`.
    fn launch(
        &self,
        program: &LoadedExecutable,
        x: Vec<Buffer>,
        shift: &[Buffer],
    ) -> Result<Execution> {
        let arguments =
            x.into_iter().zip(shift).map(|(x, shift)| vec![Argument::Donate(x), shift.into()]);
        program.execute(arguments.collect())
    }

    /// The first or second output of each of this process's devices.
    fn output(execution: &mut Execution, output: usize) -> Vec<Buffer> {
        execution.outputs.iter_mut().map(|list| list.remove(output)).collect()
    }

    /// Runs several launches, and says the values on each device.
    pub(crate) fn values(&self) -> String {
        let local = self.client.addressable_devices();
        for device in self.client.devices() {
            let process = device.id() as usize / local.len();
            assert_eq!(device.process_index() as usize, process);
            assert_eq!(device.is_addressable(), process == self.index);
            assert_eq!(
                device.to_string(),
                format!("cpu(id={}, process_index={process})", device.id())
            );
        }
        assert_eq!((self.client.platform_name(), local[0].kind()), ("cpu", "cpu"));
        assert_eq!(self.client.process_index() as usize, self.index);
        assert_eq!(local[1].local_hardware_id(), Some(1));
        let topology = self.client.topology().unwrap();
        assert_eq!(topology.platform_name(), "cpu");
        assert_eq!(
            topology.devices().last().unwrap().process_index() as usize,
            self.all() / local.len() - 1
        );

        let compiled = self.step("step");
        assert_eq!(compiled.devices(), local);
        assert!(compiled.memory_analysis().unwrap().argument_bytes > 0);
        // One process runs the stored program, the others the compiled one.
        let loaded = self.client.load(&compiled.serialize().unwrap()).unwrap();
        let step = if self.index == 0 { &loaded } else { &compiled };

        let shift = self.scalars(0.25);
        let mut x = self.vector();
        let mut sums = Vec::new();
        for _ in 0..3 {
            // The shift is sent once, and the vector is a result from the second launch on.
            let mut execution = self.launch(step, x, &shift).unwrap();
            sums = Self::output(&mut execution, 1);
            x = Self::output(&mut execution, 0);
        }
        // A copy of a result is a value from the host again.
        let copies: Vec<Buffer> =
            local.iter().map(|device| sums[0].copy_to_device(device).unwrap()).collect();
        let mut execution = self.launch(step, x, &copies).unwrap();
        for event in &execution.device_complete_events {
            event.wait().unwrap();
        }
        let last = Self::output(&mut execution, 0);
        assert!(last[0].address().is_ok() && last[0].size_on_device().unwrap() == 8);

        // A program on one device waits for nobody.
        let alone = self
            .client
            .compile(
                "func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
                   %y = stablehlo.add %x, %x : tensor<2xf32>
                   return %y : tensor<2xf32>
                 }",
                &CompileOptions::new().device_assignment([vec![local[0].id()]]),
            )
            .unwrap();
        let doubled = alone.execute(vec![vec![Argument::Borrow(&last[0])]]).unwrap();
        let twice = floats(&doubled.outputs[0][0]).unwrap();
        assert_eq!(twice, floats(&last[0]).unwrap().iter().map(|v| v + v).collect::<Vec<_>>());

        let mut values = BTreeMap::new();
        for (device, (x, sum)) in local.iter().zip(last.iter().zip(&sums)) {
            let bits =
                |buffer| floats(buffer).unwrap().iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            values.insert(device.id(), (bits(x), bits(sum)));
        }
        values.iter().map(|(id, value)| format!("{id}: {value:x?}\n")).collect()
    }

    /// A launch returns before the other process has launched, and its results follow.
    fn early(&self) -> String {
        let step = self.step("step");
        let shift = self.scalars(1.0);
        let x = self.vector();
        if self.index > 0 {
            self.store.get("launched", Duration::from_secs(60)).unwrap();
        }
        let execution = self.launch(&step, x, &shift).unwrap();
        if self.index == 0 {
            let event = execution.outputs[0][1].ready().unwrap();
            let read = execution.outputs[0][1].read().unwrap();
            thread::sleep(Duration::from_millis(200));
            assert!(!event.is_ready().unwrap() && !read.is_ready().unwrap());
            assert!(!execution.device_complete_events[0].is_ready().unwrap());
            self.store.put("launched", b"").unwrap();
            event.wait().unwrap();
            assert_eq!(read.wait().unwrap().len(), 4);
        }
        format!("{:?}", floats(&execution.outputs[0][1]).unwrap())
    }

    /// Process 1 does something that the others do not, at its second launch.
    fn mistake(&self, task: &str) -> String {
        let other =
            if task == "body" { self.step_with("step", "cosine") } else { self.step("evaluate") };
        let steps = (self.step("step"), other);
        let shift = self.scalars(1.0);
        let mut execution = self.launch(&steps.0, self.vector(), &shift).unwrap();
        let mut x = Self::output(&mut execution, 0);
        let mut program = &steps.0;
        if self.index == 1 {
            match task {
                "origin" => x = self.vector(),
                _ => program = &steps.1,
            }
        }
        let second = self.launch(program, x, &shift).unwrap();
        if task == "hang" {
            thread::sleep(Duration::from_millis(500));
            let ready = second.device_complete_events[0].is_ready().unwrap();
            return format!("ready: {ready}");
        }
        if task == "order" {
            let other = if self.index == 1 { &steps.0 } else { &steps.1 };
            let _ = self.launch(other, self.vector(), &shift);
        }
        let error = second.device_complete_events[0].wait().unwrap_err();
        let read = floats(&second.outputs[0][1]).unwrap_err();
        assert!(read.to_string().contains("virtual pod: "), "{read}");
        let next = self.launch(&steps.0, self.vector(), &shift).err().map(|e| e.to_string());
        assert!(next.unwrap().contains("virtual pod: "), "no launch can follow");
        error.to_string()
    }

    /// One process ends before its second launch.
    fn lost(&self) -> String {
        let step = self.step("step");
        let shift = self.scalars(1.0);
        let mut execution = self.launch(&step, self.vector(), &shift).unwrap();
        let x = Self::output(&mut execution, 0);
        execution.device_complete_events[0].wait().unwrap();
        if self.index == 1 {
            self.store.put("waits", b"").unwrap();
            thread::sleep(Duration::from_secs(600));
        }
        let second = self.launch(&step, x, &shift).unwrap();
        let error = second.device_complete_events[0].wait().unwrap_err();
        fs::write(self.folder.join(format!("seen-{}", self.index)), "").unwrap();
        error.to_string()
    }
}

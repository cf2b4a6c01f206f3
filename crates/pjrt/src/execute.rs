//! Executes a loaded program. Arguments that a plugin would misread or crash on are rejected first.

use std::fmt;
use std::sync::Arc;

use fulmen_durable::messages::quantity;

use crate::abi::*;
use crate::api::non_null;
use crate::at_exit;
use crate::buffer::Buffer;
use crate::error::{self, Result};
use crate::event::Event;
use crate::loaded_executable::LoadedExecutable;

/// The argument for one parameter of a program.
pub enum Argument<'a> {
    /// The program may reuse the array's memory. If it does not, the array is freed after the
    /// execution.
    Donate(Buffer),
    /// The program may only read the array, which stays unchanged.
    Borrow(&'a Buffer),
}

impl Argument<'_> {
    fn buffer(&self) -> &Buffer {
        match self {
            Self::Donate(buffer) => buffer,
            Self::Borrow(buffer) => buffer,
        }
    }
}

impl From<Buffer> for Argument<'_> {
    fn from(buffer: Buffer) -> Self {
        Self::Donate(buffer)
    }
}

impl<'a> From<&'a Buffer> for Argument<'a> {
    fn from(buffer: &'a Buffer) -> Self {
        Self::Borrow(buffer)
    }
}

impl fmt::Debug for Argument<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Donate(buffer) => write!(f, "Donate({buffer:?})"),
            Self::Borrow(buffer) => write!(f, "Borrow({buffer:?})"),
        }
    }
}

/// An execution that has started.
#[derive(Debug)]
pub struct Execution {
    /// The outputs of each device, in the order of [`LoadedExecutable::devices`]. They can be used
    /// immediately: their users wait for them.
    pub outputs: Vec<Vec<Buffer>>,
    /// An event for each device, which is ready when its part of the execution has ended.
    pub device_complete_events: Vec<Event>,
}

impl LoadedExecutable {
    /// Starts an execution, with a list of arguments for each of [`devices`](Self::devices). It
    /// does not wait for the end.
    ///
    /// The type, dimensions, client and device of each argument are checked first. If the execution
    /// cannot be started, the donated arguments are freed.
    ///
    /// On a CPU, an execution over several devices waits for the previous one on this client.
    /// Otherwise, both could wait in each other's collectives forever. An execution of a program
    /// with at least 64 MiB of temporaries waits too, because a queued execution has already
    /// allocated its temporaries.
    ///
    /// ```
    /// # use fulmen_pjrt::{Argument, CompileOptions, ElementType, Plugin, locate::{Platform, locate}};
    /// # let plugin = Plugin::load(locate(Platform::Cpu, None)?)?;
    /// # let client = plugin.create_client(&[("cpu_device_count", 1.into())])?;
    /// let next = client.compile(
    ///     "func.func @main(%n: tensor<ui8> {tf.aliasing_output = 0 : i32}) -> tensor<ui8> {
    ///        %one = stablehlo.constant dense<1> : tensor<ui8>
    ///        %sum = stablehlo.add %n, %one : tensor<ui8>
    ///        return %sum : tensor<ui8>
    ///      }",
    ///     &CompileOptions::new(),
    /// )?;
    /// let mut n = client.buffer_from_host(&[40], ElementType::U8, &[], &client.devices()[0])?;
    /// for _ in 0..2 {
    ///     n = next.execute(vec![vec![Argument::Donate(n)]])?.outputs.remove(0).remove(0);
    /// }
    /// assert_eq!(n.read()?.wait()?[..], [42]);
    /// # Ok::<(), fulmen_pjrt::Error>(())
    /// ```
    pub fn execute(&self, arguments: Vec<Vec<Argument<'_>>>) -> Result<Execution> {
        self.check_arguments(&arguments)?;
        let client = self.client().inner();
        let signature = self.signature();
        let devices = self.devices().len();
        let parameters = signature.parameters.len();

        let non_donatable = (0..parameters)
            .filter(|&i| {
                signature.donated[i]
                    && arguments.iter().any(|list| matches!(list[i], Argument::Borrow(_)))
            })
            .map(|i| i as i64)
            .collect::<Vec<_>>();
        let inputs = arguments
            .iter()
            .flatten()
            .map(|argument| argument.buffer().raw())
            .collect::<Vec<*mut PJRT_Buffer>>();
        // Not `chunks`, which rejects a length of zero.
        let input_lists =
            (0..devices).map(|device| inputs[device * parameters..].as_ptr()).collect::<Vec<_>>();
        let mut outputs = vec![std::ptr::null_mut(); devices * signature.outputs.len()];
        let mut output_lists = Vec::with_capacity(devices);
        let mut start: *mut *mut PJRT_Buffer = outputs.as_mut_ptr();
        for _ in 0..devices {
            output_lists.push(start);
            start = start.wrapping_add(signature.outputs.len());
        }
        let mut events = vec![std::ptr::null_mut(); devices];

        let mut options = PJRT_ExecuteOptions::new();
        options.non_donatable_input_indices = non_donatable.as_ptr();
        options.num_non_donatable_input_indices = non_donatable.len();
        let mut args = PJRT_LoadedExecutable_Execute_Args::new();
        args.executable = self.raw();
        args.argument_lists = input_lists.as_ptr();
        args.num_devices = devices;
        args.num_args = parameters;
        args.output_lists = output_lists.as_ptr();
        args.device_complete_events = events.as_mut_ptr();

        let several = self.num_replicas() * self.num_partitions() > 1;
        // Held until the events of this launch are stored, so that another thread waits for them.
        let mut in_flight = self.runs_alone().then(|| client.in_flight());
        for event in in_flight.iter_mut().flat_map(|events| events.drain(..)) {
            // The earlier execution reports its result through its own events and outputs.
            let _ = event.wait();
        }
        if several {
            options.launch_id = client.next_launch();
        }
        args.options = &mut options;
        // SAFETY: the lists have the lengths that the program and the device count require, and
        // outlive the call. Every buffer is alive, belongs to this client, is on the right device,
        // and has the right type and size.
        let started = unsafe { client.api().call(&mut args) };
        started.map_err(|error| error.context(format_args!("running {}", self.name())))?;

        // Takes ownership of everything before any step can fail, so that nothing leaks.
        let device_complete_events = events
            .into_iter()
            .map(|event| {
                non_null(event, "completion event").map(|event| Event::new(client.clone(), event))
            })
            .collect::<Vec<_>>();
        let outputs = outputs
            .into_iter()
            .enumerate()
            .map(|(i, raw)| {
                let device = i / signature.outputs.len();
                let output = i % signature.outputs.len();
                let array = Arc::clone(signature.shared_output(output));
                non_null(raw, "output")
                    .map(|raw| Buffer::new(raw, array, self.devices()[device].clone()))
            })
            .collect::<Vec<_>>();
        let device_complete_events =
            device_complete_events.into_iter().collect::<Result<Vec<_>>>()?;
        if let Some(in_flight) = &mut in_flight {
            in_flight.extend(device_complete_events.iter().map(|event| Arc::clone(event.raw())));
            at_exit::launched(options.launch_id);
        }
        let mut all_outputs = outputs.into_iter().collect::<Result<Vec<_>>>()?.into_iter();
        let outputs = (0..devices)
            .map(|_| all_outputs.by_ref().take(signature.outputs.len()).collect())
            .collect();
        // The donated buffers are dropped here. The execution keeps the memory that it still reads.
        drop(arguments);
        Ok(Execution { outputs, device_complete_events })
    }

    fn check_arguments(&self, arguments: &[Vec<Argument<'_>>]) -> Result<()> {
        let name = self.name();
        let signature = self.signature();
        if arguments.len() != self.devices().len() {
            return Err(error::invalid(format!(
                "{name} runs on {} of this host, but arguments were given for {}",
                quantity(self.devices().len(), "device"),
                arguments.len()
            )));
        }
        for (list, device) in arguments.iter().zip(self.devices()) {
            if list.len() != signature.parameters.len() {
                return Err(error::invalid(format!(
                    "{name} takes {}, but got {} for {device}; its signature is {signature}",
                    quantity(signature.parameters.len(), "argument"),
                    list.len()
                )));
            }
            for (i, (argument, expected)) in list.iter().zip(&signature.parameters).enumerate() {
                let buffer = argument.buffer();
                if buffer.array_type() != expected {
                    return Err(error::invalid(format!(
                        "argument {i} of {name} for {device} must be {expected}, but is {}",
                        buffer.array_type()
                    )));
                }
                if !Arc::ptr_eq(buffer.device().client(), self.client().inner()) {
                    return Err(error::invalid(format!(
                        "argument {i} of {name} belongs to a different client than the program; read it and put it on one \
                         of this client's devices"
                    )));
                }
                if buffer.device().raw() != device.raw() {
                    return Err(error::invalid(format!(
                        "argument {i} of {name} must be on {device}, but is on {}; use Buffer::copy_to_device",
                        buffer.device()
                    )));
                }
            }
        }
        Ok(())
    }
}

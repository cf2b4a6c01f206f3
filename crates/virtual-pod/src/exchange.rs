//! What the processes of a pod tell each other before a launch: the program, the origin of each
//! argument, and the values that came from a host. Out of scope: the connections (`network`) and
//! the launch itself (`launch`).

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use fulmen_pjrt::abi::*;
use fulmen_pjrt::api::non_null;
use prost::Message;

use crate::buffer::{Array, RawBuffer, Shard, array_type, await_event, byte_size, read};
use crate::error::PodError;
use crate::network::Peer;
use crate::pod::{Pod, Raw};
use crate::program::Program;

const LAUNCH: u8 = 1;
const FORGET: u8 = 2;

/// The head of the frame for a launch. The data are the bytes of its values that are sent.
#[derive(Clone, PartialEq, Message)]
struct LaunchHead {
    /// The sender's number for this launch.
    #[prost(uint64, tag = "1")]
    launch: u64,
    #[prost(string, tag = "2")]
    program: String,
    #[prost(string, tag = "3")]
    fingerprint: String,
    #[prost(message, repeated, tag = "4")]
    arguments: Vec<ArgumentHead>,
}

#[derive(Clone, PartialEq, Message)]
struct ArgumentHead {
    /// The launch that computed it; 0 if it came from the host.
    #[prost(uint64, tag = "1")]
    launch: u64,
    #[prost(uint32, tag = "2")]
    output: u32,
    /// If it came from the host, the value on each of the sender's devices.
    #[prost(message, repeated, tag = "3")]
    values: Vec<ValueHead>,
}

#[derive(Clone, PartialEq, Message)]
struct ValueHead {
    /// The number under which the receiver keeps the value; 0 if it is used once.
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(uint64, tag = "2")]
    len: u64,
    #[prost(enumeration = "Content", tag = "3")]
    content: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
enum Content {
    /// The bytes are the next ones of the frame's data.
    Sent = 0,
    /// The bytes are those of the argument's first value.
    SameAsFirst = 1,
    /// The receiver has kept the value.
    Kept = 2,
}

/// The values that a process may drop.
#[derive(Clone, PartialEq, Message)]
struct ForgetHead {
    #[prost(uint64, repeated, tag = "1")]
    ids: Vec<u64>,
}

/// Where an argument of a launch comes from.
pub(crate) enum Source {
    /// An earlier launch, of which every process has the results.
    Result(Arc<Array>),
    Host,
}

/// The arguments of other processes, by process: the buffers of each host argument.
type Received = BTreeMap<usize, Vec<Vec<Arc<RawBuffer>>>>;

/// The state of the exchange with all other processes.
pub(crate) struct Exchange {
    pod: Arc<Pod>,
    peers: Vec<Peer>,
    /// The number of the latest launch over several processes.
    launch: u64,
    /// The values of other processes that they may use again.
    kept: HashMap<(usize, u64), Arc<RawBuffer>>,
}

/// The result of an exchange.
pub(crate) struct Agreed {
    /// The number of the launch, the same in all its processes.
    pub(crate) launch: u64,
    received: Received,
}

impl Agreed {
    /// The buffer for an argument on a device of another process, which is its `index`-th.
    pub(crate) fn value(
        &self,
        process: usize,
        argument: usize,
        index: usize,
    ) -> Option<&RawBuffer> {
        Some(self.received.get(&process)?.get(argument)?.get(index)?)
    }
}

impl Exchange {
    pub(crate) fn new(pod: Arc<Pod>, peers: Vec<Peer>) -> Exchange {
        Self { pod, peers, launch: 0, kept: HashMap::new() }
    }

    /// Closes the connections, after which the others learn that this process is lost.
    pub(crate) fn close(&mut self) {
        self.peers.clear();
    }

    /// Tells the other processes of a program what this one launches, and checks that they launch
    /// the same.
    pub(crate) fn agree(
        &mut self,
        program: &Program,
        arguments: &[Vec<Shard>],
        sources: &[Source],
    ) -> Result<Agreed, PodError> {
        let mut data = Vec::new();
        let heads = sources.iter().enumerate().map(|(i, source)| {
            self.describe(source, arguments.iter().map(|list| &list[i]), program, &mut data)
        });
        let own = LaunchHead {
            launch: self.launch + 1,
            program: program.name.clone(),
            fingerprint: program.fingerprint.clone(),
            arguments: heads.collect::<Result<_, _>>()?,
        };
        let bytes = own.encode_to_vec();
        let mut lost = BTreeMap::new();
        for peer in self.peers.iter().filter(|peer| program.processes.contains(&peer.process)) {
            let ids = self.pod.take_forgotten(peer.process);
            let mut sent = Ok(());
            if !ids.is_empty() {
                sent = peer.send(FORGET, &ForgetHead { ids }.encode_to_vec(), &[]);
            }
            // The others still get the frame, so that they name the same process.
            if let Err(why) = sent.and_then(|()| peer.send(LAUNCH, &bytes, &data)) {
                lost.insert(peer.process, why);
            }
        }
        drop(data);
        let mut frames = BTreeMap::new();
        for peer in self.peers.iter().filter(|peer| program.processes.contains(&peer.process)) {
            match next_launch(peer, &mut self.kept) {
                Ok(frame) => drop(frames.insert(peer.process, frame)),
                Err(why) => drop(lost.insert(peer.process, why)),
            }
        }
        if !lost.is_empty() {
            return Err(lost_processes(&lost, &own, self.pod.process));
        }
        let mut heads: BTreeMap<usize, &LaunchHead> =
            frames.iter().map(|(&process, (head, _))| (process, head)).collect();
        heads.insert(self.pod.process, &own);
        compare(&heads)?;
        self.launch = heads.values().map(|head| head.launch).max().unwrap_or(own.launch);
        let mut received = BTreeMap::new();
        for (process, (head, data)) in &frames {
            received.insert(*process, self.unpack(*process, head, data, program, arguments)?);
        }
        Ok(Agreed { launch: self.launch, received })
    }

    /// Describes an argument, and appends the bytes to send.
    fn describe<'a>(
        &self,
        source: &Source,
        shards: impl Iterator<Item = &'a Shard>,
        program: &Program,
        data: &mut Vec<u8>,
    ) -> Result<ArgumentHead, PodError> {
        if let Source::Result(array) = source {
            let (launch, output) = array.origin.get().copied().unwrap_or_default();
            return Ok(ArgumentHead { launch, output, values: Vec::new() });
        }
        let mut values = Vec::new();
        let mut first: Option<Vec<u8>> = None;
        for shard in shards {
            let parts = shard.array.wait()?;
            let (id, is_kept) = self.number(shard, program);
            if is_kept {
                values.push(ValueHead { id, len: 0, content: Content::Kept.into() });
                continue;
            }
            let bytes = read(&parts[shard.index])?;
            let len = bytes.len() as u64;
            if values.first().is_some_and(|v: &ValueHead| v.content == i32::from(Content::Sent))
                && first.as_ref() == Some(&bytes)
            {
                values.push(ValueHead { id, len, content: Content::SameAsFirst.into() });
                continue;
            }
            values.push(ValueHead { id, len, content: Content::Sent.into() });
            data.extend(&bytes);
            first.get_or_insert(bytes);
        }
        Ok(ArgumentHead { launch: 0, output: 0, values })
    }

    /// The number of a value for the other processes of a program, and whether all of them have it.
    /// A part of a larger array has no number.
    fn number(&self, shard: &Shard, program: &Program) -> (u64, bool) {
        if shard.array.devices.len() > 1 {
            return (0, false);
        }
        let others = || program.processes.iter().copied().filter(|&p| p != self.pod.process);
        let mut sent = shard.array.sent.lock();
        if sent.id == 0 {
            sent.id = self.pod.number_value();
        }
        let is_kept = others().all(|process| sent.to.contains(&process));
        sent.to.extend(others());
        (sent.id, is_kept)
    }

    /// Puts the values of another process on its devices.
    fn unpack(
        &mut self,
        process: usize,
        head: &LaunchHead,
        mut data: &[u8],
        program: &Program,
        own: &[Vec<Shard>],
    ) -> Result<Vec<Vec<Arc<RawBuffer>>>, PodError> {
        let wrong = |i: usize, what: String| {
            PodError::invalid(format!(
                "virtual pod: argument {i} of `{}` in process {process} {what}",
                head.program
            ))
        };
        let devices: Vec<Raw<PJRT_Device>> = program
            .devices
            .iter()
            .copied()
            .filter(|&device| self.pod.process_of(device) == Some(process))
            .collect();
        let mut arguments = Vec::new();
        for (i, argument) in head.arguments.iter().enumerate() {
            let mut buffers = Vec::new();
            if argument.launch > 0 {
                arguments.push(buffers);
                continue;
            }
            if argument.values.len() != devices.len() {
                return Err(wrong(i, format!("has {} values", argument.values.len())));
            }
            let template = own[0][i].array.wait()?;
            let template = &template[own[0][i].index];
            let (kind, dims) = array_type(template)?;
            let size = byte_size(template)?;
            let mut first: &[u8] = &[];
            for (value, &device) in argument.values.iter().zip(&devices) {
                let key = (process, value.id);
                let bytes = match Content::try_from(value.content) {
                    Ok(Content::Kept) => {
                        let kept = self.kept.get(&key).ok_or_else(|| {
                            wrong(i, "refers to a value that it has not sent".to_owned())
                        })?;
                        buffers.push(kept.clone());
                        continue;
                    }
                    Ok(Content::SameAsFirst) => first,
                    Ok(Content::Sent) => {
                        let len = usize::try_from(value.len).unwrap_or(usize::MAX);
                        let Some((bytes, rest)) = data.split_at_checked(len) else {
                            return Err(wrong(i, "is longer than its message".to_owned()));
                        };
                        data = rest;
                        bytes
                    }
                    Err(_) => return Err(wrong(i, "has an unknown form".to_owned())),
                };
                if first.is_empty() {
                    first = bytes;
                }
                if bytes.len() != size {
                    return Err(wrong(
                        i,
                        format!(
                            "has {} bytes on a device, but {size} in process {}",
                            bytes.len(),
                            self.pod.process
                        ),
                    ));
                }
                let buffer = Arc::new(put(&self.pod, bytes, kind, &dims, device)?);
                if value.id > 0 {
                    self.kept.insert(key, buffer.clone());
                }
                buffers.push(buffer);
            }
            arguments.push(buffers);
        }
        Ok(arguments)
    }
}

/// The next launch of another process. The values that it no longer needs are dropped.
fn next_launch(
    peer: &Peer,
    kept: &mut HashMap<(usize, u64), Arc<RawBuffer>>,
) -> Result<(LaunchHead, Vec<u8>), String> {
    loop {
        let frame = peer.receive()?;
        let damaged = |error| format!("its message is not valid: {error}");
        match frame.kind {
            LAUNCH => {
                return Ok((LaunchHead::decode(&frame.head[..]).map_err(damaged)?, frame.data));
            }
            FORGET => {
                for id in ForgetHead::decode(&frame.head[..]).map_err(damaged)?.ids {
                    kept.remove(&(peer.process, id));
                }
            }
            kind => return Err(format!("its message has the unknown kind {kind}")),
        }
    }
}

/// Copies bytes to a device of the CPU plugin.
fn put(
    pod: &Arc<Pod>,
    bytes: &[u8],
    kind: i32,
    dims: &[i64],
    device: Raw<PJRT_Device>,
) -> Result<RawBuffer, PodError> {
    let mut args = PJRT_Client_BufferFromHostBuffer_Args::new();
    args.client = pod.raw.0;
    args.data = bytes.as_ptr().cast();
    args.kind = kind;
    args.dims = dims.as_ptr();
    args.num_dims = dims.len();
    args.host_buffer_semantics = PJRT_HOST_BUFFER_IMMUTABLE_ONLY_DURING_CALL;
    args.device = device.0;
    // SAFETY: the client and the device belong together. The caller has checked that the bytes have
    // the size of this type and these dimensions; they are copied before the return.
    unsafe { pod.inner.call(&mut args) }?;
    let buffer = RawBuffer::new(pod, args.buffer)?;
    await_event(pod.inner, non_null(args.done_with_host_buffer, "event")?.as_ptr())?;
    Ok(buffer)
}

/// `processes 0, 1 and 3`, or `process 2`.
fn name_processes(processes: &[usize]) -> String {
    match processes {
        [one] => format!("process {one}"),
        [all @ .., last] => {
            let all = all.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
            format!("processes {all} and {last}")
        }
        [] => "no process".to_owned(),
    }
}

fn lost_processes(lost: &BTreeMap<usize, String>, own: &LaunchHead, process: usize) -> PodError {
    let lost = lost.iter().map(|(process, why)| format!("process {process} is lost ({why})"));
    PodError::new(
        PJRT_Error_Code::UNAVAILABLE,
        format!(
            "virtual pod: {}; process {process} waited for it at launch {}, `{}`",
            lost.collect::<Vec<_>>().join(", "),
            own.launch,
            own.program
        ),
    )
}

/// Checks that all processes launch the same. The message is the same in all of them.
fn compare(heads: &BTreeMap<usize, &LaunchHead>) -> Result<(), PodError> {
    let launch = heads.values().map(|head| head.launch).max().unwrap_or_default();
    let failed = |message: String| {
        Err(PodError::new(PJRT_Error_Code::FAILED_PRECONDITION, format!("virtual pod: {message}")))
    };
    let programs = groups(heads, |head| {
        let short = head.fingerprint.get(..12).unwrap_or(&head.fingerprint);
        format!("`{}` (fingerprint {short})", head.program)
    });
    if programs.len() > 1 {
        let launches = programs
            .iter()
            .map(|(program, processes)| {
                let verb = if processes.len() == 1 { "launches" } else { "launch" };
                format!("{} {verb} {program}", name_processes(processes))
            })
            .collect::<Vec<_>>();
        return failed(format!(
            "at launch {launch}, {}; all processes must launch the same programs in the same order",
            launches.join(", but ")
        ));
    }
    let Some(first) = heads.values().next() else { return Ok(()) };
    let counts = groups(heads, |head| head.arguments.len().to_string());
    if counts.len() > 1 {
        return failed(format!(
            "at launch {launch}, the numbers of arguments of `{}` differ: {counts:?}",
            first.program
        ));
    }
    for i in 0..first.arguments.len() {
        let origins = groups(heads, |head| match &head.arguments[i] {
            ArgumentHead { launch: 0, .. } => "comes from the host".to_owned(),
            ArgumentHead { launch, output, .. } => format!("is output {output} of launch {launch}"),
        });
        if origins.len() > 1 {
            let origins = origins
                .iter()
                .map(|(origin, processes)| format!("{origin} in {}", name_processes(processes)))
                .collect::<Vec<_>>();
            return failed(format!(
                "argument {i} of `{}` (launch {launch}) {}; it must have the same origin in all processes",
                first.program,
                origins.join(", but ")
            ));
        }
    }
    Ok(())
}

/// The processes with the same description of their launch, the largest group first.
fn groups(
    heads: &BTreeMap<usize, &LaunchHead>,
    describe: impl Fn(&LaunchHead) -> String,
) -> Vec<(String, Vec<usize>)> {
    let mut groups: Vec<(String, Vec<usize>)> = Vec::new();
    for (&process, head) in heads {
        let description = describe(head);
        match groups.iter_mut().find(|(known, _)| *known == description) {
            Some((_, processes)) => processes.push(process),
            None => groups.push((description, vec![process])),
        }
    }
    groups.sort_by_key(|(_, processes)| std::cmp::Reverse(processes.len()));
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(program: &str, fingerprint: &str, origins: &[(u64, u32)]) -> LaunchHead {
        let argument =
            |&(launch, output): &(u64, u32)| ArgumentHead { launch, output, values: Vec::new() };
        LaunchHead {
            launch: 7,
            program: program.into(),
            fingerprint: fingerprint.into(),
            arguments: origins.iter().map(argument).collect(),
        }
    }

    fn differences(heads: &[LaunchHead]) -> String {
        compare(&heads.iter().enumerate().collect()).err().map_or_else(String::new, |e| e.message)
    }

    #[test]
    fn a_difference_names_processes_launch_and_program() {
        let step = || head("step", "aa", &[(0, 0), (5, 1)]);
        assert_eq!(differences(&[step(), step(), step()]), "");
        assert_eq!(
            differences(&[step(), step(), head("eval", "bb", &[]), step()]),
            "virtual pod: at launch 7, processes 0, 1 and 3 launch `step` (fingerprint aa), but process 2 launches `eval` \
             (fingerprint bb); all processes must launch the same programs in the same order"
        );
        let error = differences(&[step(), head("step", "cc", &[(0, 0), (5, 1)])]);
        assert!(
            error.contains(
                "`step` (fingerprint aa), but process 1 launches `step` (fingerprint cc)"
            )
        );
        assert_eq!(
            differences(&[step(), head("step", "aa", &[(0, 0), (0, 0)]), step()]),
            "virtual pod: argument 1 of `step` (launch 7) is output 1 of launch 5 in processes 0 and 2, but comes from the \
             host in process 1; it must have the same origin in all processes"
        );
    }
}

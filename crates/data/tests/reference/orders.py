"""The orders of shuffle buffers and mixtures that the tests pin, by a second implementation of ChaCha8, of the draws and
of the algorithms. Python 3 alone; prints what the tests expect."""

import struct


def chacha8(key):
    """The stream of 64-bit words that a ChaCha8 with this key of four 64-bit words and nonce 0 gives."""
    words = [w for number in key for w in struct.unpack("<2I", struct.pack("<Q", number))]
    rotate = lambda x, n: ((x << n) | (x >> (32 - n))) & 0xFFFFFFFF
    counter = 0
    while True:
        start = [0x61707865, 0x3320646E, 0x79622D32, 0x6B206574, *words, counter & 0xFFFFFFFF, counter >> 32, 0, 0]
        x = start[:]

        def quarter(a, b, c, d):
            for i, j, k, n in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
                x[i] = (x[i] + x[j]) & 0xFFFFFFFF
                x[k] = rotate(x[k] ^ x[i], n)

        for _ in range(4):
            for quad in ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15)):
                quarter(*quad)
            for quad in ((0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14)):
                quarter(*quad)
        block = [(a + b) & 0xFFFFFFFF for a, b in zip(x, start)]
        yield from (block[i] | block[i + 1] << 32 for i in range(0, 16, 2))
        counter += 1


def below(random, bound):
    while True:
        product = next(random) * bound
        if product % 2**64 >= 2**64 % bound:
            return product >> 64


def shuffle_buffer(count, buffer, seed, epoch):
    random = chacha8([seed, epoch, buffer, 4])
    items, held, order = iter(range(count)), [], []
    while True:
        while len(held) < buffer and (item := next(items, None)) is not None:
            held.append(item)
        if not held:
            return order
        place = below(random, len(held))
        order.append(held[place])
        held[place] = held[-1]
        held.pop()


def unit(random):
    return (next(random) >> 11) / 2**53


def shuffled(key, values):
    random = chacha8(key)
    for last in range(len(values) - 1, 0, -1):
        other = below(random, last + 1)
        values[last], values[other] = values[other], values[last]
    return values


def draw(weights, number):
    total, sums = 0.0, []
    for weight in weights:
        total += weight
        sums.append(total)
    return next(i for i, end in enumerate(sums) if end > number * total)


def mix(lengths, weights, count, seed, epoch):
    random = chacha8([seed, epoch, 2**64 - 1, 5])
    rest, passes, order = [[] for _ in lengths], [0] * len(lengths), []
    while len(order) < count:
        part = draw(weights, unit(random))
        if not rest[part]:
            start = sum(lengths[:part])
            rest[part] = shuffled([seed, epoch, part << 40 | passes[part], 5], list(range(start, start + lengths[part])))
            passes[part] += 1
        order.append(rest[part].pop())
    return order


def weighted(weights, count, seed, epoch):
    random = chacha8([seed, epoch, len(weights), 8])
    return [draw(weights, unit(random)) for _ in range(count)]


def fnv(order):
    value = 0xCBF29CE484222325
    for number in order:
        value = (value ^ number) * 0x100000001B3 % 2**64
    return value


if __name__ == "__main__":
    order = shuffle_buffer(200, 10, 5, 0)
    print("shuffle_buffer(200, 10, seed 5, epoch 0):", order[:12], hex(fnv(order)))
    print("MixSampler([5, 3], [1, 1], 12, seed 9), epoch 2:", mix([5, 3], [1.0, 1.0], 12, 9, 2))
    print("WeightedRandomSampler([1, 0, 3, 2], 12, seed 9), epoch 2:", weighted([1.0, 0.0, 3.0, 2.0], 12, 9, 2))

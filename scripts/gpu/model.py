#!/usr/bin/env python3
# Writes a GGUF model with the shape of an 8B Llama and weights without meaning, to measure with.
#
# Called by run.py beside it, on a machine that has nothing to download a model with. Speed and memory depend on the shape alone.
# It must never be taken for a model that answers.
import argparse
import random
import struct

SHAPES = {
    # layers, width, heads, heads of keys and values, width of the feed-forward part, tokens
    "8b": (32, 4096, 32, 8, 14336, 128256),
    "1b": (16, 2048, 32, 8, 8192, 128256),
    "tiny": (2, 64, 4, 2, 128, 512),
}
CONTEXT = 131072
ALIGNMENT = 32
TYPE_F32, TYPE_Q4_0 = 0, 2
U32, F32, BOOL, STRING, ARRAY, I32 = 4, 6, 7, 8, 9, 5
# A block of Q4_0 is a scale of two bytes and 32 weights of four bits.
BLOCK = 18
TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def entry(key, kind, value):
    packed = {U32: lambda: struct.pack("<I", value), F32: lambda: struct.pack("<f", value),
              BOOL: lambda: struct.pack("<?", value), STRING: lambda: text(value)}[kind]()
    return text(key) + struct.pack("<I", kind) + packed


def array(key, kind, values):
    body = b"".join(text(value) for value in values) if kind == STRING else \
        struct.pack(f"<{len(values)}{'f' if kind == F32 else 'i'}", *values)
    return text(key) + struct.pack("<IIQ", ARRAY, kind, len(values)) + body


def vocabulary(count):
    """Tokens for every byte, and others that no text gives."""
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    kinds = [2, 3, 3] + [6] * 256
    tokens += [f"▁w{number}" for number in range(count - len(tokens))]
    kinds += [1] * (count - len(kinds))
    return tokens, kinds


def metadata(shape):
    layers, width, heads, kv_heads, inner, count = shape
    tokens, kinds = vocabulary(count)
    numbers = {"block_count": layers, "context_length": CONTEXT, "embedding_length": width, "feed_forward_length": inner,
               "attention.head_count": heads, "attention.head_count_kv": kv_heads, "vocab_size": count,
               "rope.dimension_count": width // heads}
    entries = [entry("general.architecture", STRING, "llama"), entry("general.name", STRING, "shape without meaning"),
               entry("general.file_type", U32, 2), entry("general.alignment", U32, ALIGNMENT)]
    entries += [entry(f"llama.{key}", U32, value) for key, value in numbers.items()]
    entries += [entry("llama.attention.layer_norm_rms_epsilon", F32, 1e-5), entry("llama.rope.freq_base", F32, 500000.0),
                entry("tokenizer.ggml.model", STRING, "llama"), array("tokenizer.ggml.tokens", STRING, tokens),
                array("tokenizer.ggml.scores", F32, [0.0] * count), array("tokenizer.ggml.token_type", I32, kinds),
                entry("tokenizer.ggml.bos_token_id", U32, 1), entry("tokenizer.ggml.eos_token_id", U32, 2),
                entry("tokenizer.ggml.unknown_token_id", U32, 0), entry("tokenizer.chat_template", STRING, TEMPLATE)]
    return entries


def tensors(shape):
    """Name, dimensions and type of each tensor, in the order of the file."""
    layers, width, heads, kv_heads, inner, count = shape
    keys = width // heads * kv_heads
    yield "token_embd.weight", (width, count), TYPE_Q4_0
    yield "output_norm.weight", (width,), TYPE_F32
    yield "output.weight", (width, count), TYPE_Q4_0
    for layer in range(layers):
        yield f"blk.{layer}.attn_norm.weight", (width,), TYPE_F32
        yield f"blk.{layer}.ffn_norm.weight", (width,), TYPE_F32
        for name, out in (("attn_q", width), ("attn_k", keys), ("attn_v", keys), ("attn_output", width)):
            yield f"blk.{layer}.{name}.weight", (width, out), TYPE_Q4_0
        for name, into, out in (("ffn_gate", width, inner), ("ffn_up", width, inner), ("ffn_down", inner, width)):
            yield f"blk.{layer}.{name}.weight", (into, out), TYPE_Q4_0


def size(dimensions, kind):
    count = 1
    for dimension in dimensions:
        count *= dimension
    return count * 4 if kind == TYPE_F32 else count // 32 * BLOCK


def padding(length):
    return b"\0" * (-length % ALIGNMENT)


def write(path, shape):
    entries, listed = metadata(shape), list(tensors(shape))
    head = b"GGUF" + struct.pack("<IQQ", 3, len(listed), len(entries)) + b"".join(entries)
    offset = 0
    for name, dimensions, kind in listed:
        head += text(name) + struct.pack(f"<I{len(dimensions)}QIQ", len(dimensions), *dimensions, kind, offset)
        offset += size(dimensions, kind) + (-size(dimensions, kind) % ALIGNMENT)
    noise = random.Random(17)
    # Small weights, so that sums stay in range through all layers.
    scale = struct.pack("<e", 0.0034)
    pattern = b"".join(scale + noise.randbytes(16) for _ in range(1 << 16))
    with open(path, "wb") as file:
        file.write(head + padding(len(head)))
        for _, dimensions, kind in listed:
            left = size(dimensions, kind)
            if kind == TYPE_F32:
                file.write(struct.pack("<f", 1.0) * (left // 4))
            start = noise.randrange(1 << 16) * BLOCK
            rotated = pattern[start:] + pattern[:start]
            while kind == TYPE_Q4_0 and left > 0:
                file.write(rotated[:left])
                left -= min(left, len(rotated))
            file.write(padding(size(dimensions, kind)))


def main():
    parser = argparse.ArgumentParser(description="Write a model with a shape and without meaning")
    parser.add_argument("path")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="8b")
    args = parser.parse_args()
    write(args.path, SHAPES[args.shape])


if __name__ == "__main__":
    main()

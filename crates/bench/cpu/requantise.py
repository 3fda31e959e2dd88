# Writes a GGUF file again with its quantised matrices in another type: requantise.py FROM TO TYPE.
#
# Called by figures.py, with the Python that has the package `gguf`. The values come from a file that is quantised already, so
# the result is for measuring speed; replies of it are worse than those of a file that was quantised once.
import sys

import gguf


def main():
    source, target, kind = sys.argv[1], sys.argv[2], gguf.GGMLQuantizationType[sys.argv[3]]
    reader = gguf.GGUFReader(source)
    architecture = reader.get_field(gguf.Keys.General.ARCHITECTURE).contents()
    writer = gguf.GGUFWriter(target, architecture)
    for field in reader.fields.values():
        if field.name == gguf.Keys.General.ARCHITECTURE or field.name.startswith("GGUF."):
            continue
        part = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=part)
    for tensor in reader.tensors:
        data, own = tensor.data, tensor.tensor_type
        # What is not quantised, such as norms, stays.
        if own not in (gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16, kind):
            data, own = gguf.quants.quantize(gguf.quants.dequantize(data, own), kind), kind
        writer.add_tensor(tensor.name, data, raw_dtype=own)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


main()

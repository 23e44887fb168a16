// Traits: in what a device differs from the others.
#include "vdev.hpp"

#include <algorithm>

namespace vdev {

namespace {

// Rows of every quantised type are padded to whole blocks; the largest block has 256 elements (QK_K).
constexpr uint64_t padding_unit = 256;
constexpr uint64_t max_padding  = 1u << 20;

const char * const keys_hint = "There are memory=SIZE, in-use=SIZE, alignment=SIZE, max-buffer=SIZE, pad=ELEMENTS, 2d=on|off, "
                               "async=on|off, events=on|off, refuse=OP|OP/TYPE|/TYPE+...";

bool passes_on(ggml_op op) {
    return op == GGML_OP_NONE || op == GGML_OP_VIEW || op == GGML_OP_RESHAPE || op == GGML_OP_PERMUTE ||
           op == GGML_OP_TRANSPOSE;
}

bool is_operation(const std::string & name) {
    for (int i = 0; i < GGML_OP_COUNT; i++) {
        if (name == ggml_op_name((ggml_op) i)) {
            return !passes_on((ggml_op) i);
        }
    }
    for (int i = 0; i < GGML_UNARY_OP_COUNT; i++) {
        if (name == ggml_unary_op_name((ggml_unary_op) i)) {
            return true;
        }
    }
    for (int i = 0; i < GGML_GLU_OP_COUNT; i++) {
        if (name == ggml_glu_op_name((ggml_glu_op) i)) {
            return true;
        }
    }
    return false;
}

int type_of(const std::string & name) {
    for (int i = 0; i < GGML_TYPE_COUNT; i++) {
        const char * known = ggml_type_name((ggml_type) i);
        if (known != nullptr && name == known) {
            return i;
        }
    }
    return -1;
}

// OP, OP/TYPE or /TYPE
bool parse_refusal(const std::string & text, Refusal & out, std::string & error) {
    const size_t slash = text.find('/');
    out.operation      = text.substr(0, slash);
    out.type           = -1;
    if (!out.operation.empty() && !is_operation(out.operation)) {
        error = "a device cannot refuse the operation \"" + out.operation +
                "\"\nOperations are called as ggml_op_desc calls them: MUL_MAT, FLASH_ATTN_EXT, GELU; views are free.";
        return false;
    }
    if (slash != std::string::npos) {
        out.type = type_of(text.substr(slash + 1));
        if (out.type < 0) {
            error = "there is no type \"" + text.substr(slash + 1) +
                    "\"\nTypes are called as ggml_type_name calls them: f32, f16, bf16, q8_0.";
            return false;
        }
    }
    if (out.operation.empty() && out.type < 0) {
        error = "a refusal is empty\nWrite OP, OP/TYPE or /TYPE, several with a plus between them.";
        return false;
    }
    return true;
}

bool parse_refusals(const std::string & text, std::vector<Refusal> & out, std::string & error) {
    out.clear();
    for (const std::string & part : split(text, '+')) {
        out.emplace_back();
        if (!parse_refusal(part, out.back(), error)) {
            return false;
        }
    }
    return true;
}

bool set_size(const std::string & text, uint64_t least, uint64_t & out, std::string & error) {
    if (parse_size(text, out) && out >= least && out < (uint64_t) INT64_MAX) {
        return true;
    }
    error = "\"" + text + "\" is not a size\nWrite it as 512M, 4G or a number of bytes" +
            (least > 0 ? ", at least 1." : ".");
    return false;
}

bool set_switch(const std::string & text, bool & out, std::string & error) {
    if (text != "on" && text != "off") {
        error = "\"" + text + "\" is no switch\nWrite on or off.";
        return false;
    }
    out = text == "on";
    return true;
}

bool set_field(Traits & traits, const std::string & key, const std::string & value, std::string & error) {
    uint64_t n = 0;
    if (key == "memory") {
        return set_size(value, 1, traits.memory, error);
    }
    if (key == "in-use") {
        return set_size(value, 0, traits.in_use, error);
    }
    if (key == "max-buffer") {
        return set_size(value, 1, traits.max_buffer, error);
    }
    if (key == "alignment") {
        if (!parse_size(value, n) || !is_alignment(n)) {
            error = "an alignment of \"" + value + "\" is impossible\nIt must be a power of two from 16 to 2097152.";
            return false;
        }
        traits.alignment = n;
        return true;
    }
    if (key == "pad") {
        if (!parse_number(value, n) || n % padding_unit != 0 || n > max_padding) {
            error = "rows cannot be padded to \"" + value +
                    "\" elements\nIt must be a multiple of 256 up to 1048576, or 0; CUDA pads to 512.";
            return false;
        }
        traits.row_padding = n;
        return true;
    }
    if (key == "2d") {
        return set_switch(value, traits.native_2d, error);
    }
    if (key == "async") {
        return set_switch(value, traits.async, error);
    }
    if (key == "events") {
        return set_switch(value, traits.events, error);
    }
    if (key == "refuse") {
        return parse_refusals(value, traits.refuses, error);
    }
    error = "there is no trait \"" + key + "\"\n" + keys_hint;
    return false;
}

struct Field {
    std::string key;
    std::string value;
};

// DEVICE:KEY=VALUE,... ; of a device *, all devices are meant.
bool parse_item(const std::string & text, size_t devices, std::string & device, std::vector<Field> & fields,
                std::string & error) {
    const size_t colon  = text.find(':');
    uint64_t     number = 0;
    device              = text.substr(0, colon);
    if (colon == std::string::npos || (device != "*" && !parse_number(device, number))) {
        error = "they do not begin with a device and a colon\nWrite DEVICE:KEY=VALUE,... with a number from 0 or *.";
        return false;
    }
    if (device != "*") {
        if (number >= devices) {
            error = "there is no device " + device + "\nThe " + std::to_string(devices) + " devices are numbered from 0.";
            return false;
        }
        device = std::to_string(number);
    }
    for (const std::string & field : split(text.substr(colon + 1), ',')) {
        const size_t equals = field.find('=');
        if (equals == std::string::npos) {
            error = "\"" + field + "\" is not KEY=VALUE\n" + keys_hint;
            return false;
        }
        fields.push_back({ field.substr(0, equals), field.substr(equals + 1) });
        for (size_t i = 0; i + 1 < fields.size(); i++) {
            if (fields[i].key == fields.back().key) {
                error = "\"" + fields.back().key + "\" is given twice\nGive each trait of a device once.";
                return false;
            }
        }
    }
    return true;
}

bool apply(Traits & traits, const std::vector<Field> & fields, std::string & error) {
    for (const Field & field : fields) {
        if (!set_field(traits, field.key, field.value, error)) {
            return false;
        }
        if (field.key == "async" && !traits.async) {
            traits.events = false;
        }
    }
    if (traits.events && !traits.async) {
        error = "events need a device that is asynchronous\nLeave events=on away, or set async=on.";
        return false;
    }
    if (traits.in_use >= traits.memory) {
        error = std::to_string(traits.in_use) + " of " + std::to_string(traits.memory) +
                " bytes of memory are in use\nLeave at least a byte free.";
        return false;
    }
    return true;
}

} // namespace

// ITEM;ITEM... Those of all devices come first, wherever they stand.
bool parse_traits(const std::string & text, std::vector<Traits> & devices, std::string & error) {
    if (text.empty()) {
        return true;
    }
    const std::vector<std::string>  items = split(text, ';');
    std::vector<std::string>        which(items.size());
    std::vector<std::vector<Field>> fields(items.size());
    const auto                      complain = [&](size_t i) {
        error = "traits \"" + items[i] + "\": " + error;
        return false;
    };
    for (size_t i = 0; i < items.size(); i++) {
        if (!parse_item(items[i], devices.size(), which[i], fields[i], error)) {
            return complain(i);
        }
        if (std::find(which.begin(), which.begin() + i, which[i]) != which.begin() + i) {
            error = (which[i] == "*" ? "all devices are" : "device " + which[i] + " is") +
                    std::string(" described twice\nGive all traits of a device in one place.");
            return complain(i);
        }
    }
    for (const bool all : { true, false }) {
        for (size_t i = 0; i < items.size(); i++) {
            if ((which[i] == "*") != all) {
                continue;
            }
            for (size_t d = 0; d < devices.size(); d++) {
                if ((all || which[i] == std::to_string(d)) && !apply(devices[d], fields[i], error)) {
                    return complain(i);
                }
            }
        }
    }
    return true;
}

// As ggml_backend_cuda_buffer_type_get_alloc_size (ggml-cuda.cu 904, without FlashAttention's work space).
size_t padded_size(const Traits & traits, const ggml_tensor * tensor) {
    size_t size = ggml_nbytes(tensor);
    if (traits.row_padding > 0 && ggml_is_quantized(tensor->type)) {
        const uint64_t rest = tensor->ne[0] % traits.row_padding;
        if (rest != 0) {
            size += ggml_row_size(tensor->type, (int64_t) (traits.row_padding - rest));
        }
    }
    return size;
}

bool refuses(const Traits & traits, const ggml_tensor * node) {
    if (traits.refuses.empty() || passes_on(node->op)) {
        return false;
    }
    return std::any_of(traits.refuses.begin(), traits.refuses.end(), [&](const Refusal & one) {
        if (!one.operation.empty() && one.operation != ggml_op_name(node->op) && one.operation != ggml_op_desc(node)) {
            return false;
        }
        return one.type < 0 || node->type == one.type ||
               std::any_of(std::begin(node->src), std::end(node->src),
                           [&](const ggml_tensor * src) { return src != nullptr && src->type == one.type; });
    });
}

} // namespace vdev

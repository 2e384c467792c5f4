#include "code.hpp"

#include <elf.h>
#include <link.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace hipsim::code {
namespace {

/// What may come after an instruction.
struct Instruction {
  enum Kind : std::uint8_t {
    plain,
    branch,     ///< to `target` or on
    jump,       ///< to `target`
    call,       ///< of `target`, and on when that returns
    slot_call,  ///< the same; the function's address stands at `target`
    slot_jump,  ///< to the function whose address stands at `target`: what a call to another object goes through
    give_back,  ///< to the caller: a return
    end,        ///< nowhere: a trap, or the end of a GPU thread
    unknown,
  };
  Kind kind = unknown;
  unsigned length = 0;
  Address target = 0;
};

template <class T>
T load(const unsigned char* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

#if defined(__x86_64__)

// ---- lengths of instructions: Intel's manual, volume 2, appendix A
// ---------------------------------------------------

/// An instruction taken apart as far as its length needs.
struct Parts {
  unsigned map = 0;  ///< 0: one byte; 1: 0F; 2: 0F 38; 3: 0F 3A; above: EVEX alone
  unsigned char opcode = 0;
  bool has_wide_immediate = false;      ///< REX.W
  bool has_short_immediate = false;     ///< prefix 66: 16 bits instead of 32
  bool is_vector = false;               ///< VEX or EVEX
  const unsigned char* rest = nullptr;  ///< behind the opcode
};

Parts take_apart(const unsigned char* at) {
  Parts parts;
  const auto is_prefix = [](unsigned char byte) {
    return byte == 0xf0 || byte == 0xf2 || byte == 0xf3 || byte == 0x2e || byte == 0x36 || byte == 0x3e ||
           byte == 0x26 || byte == 0x64 || byte == 0x65 || byte == 0x66 || byte == 0x67;
  };
  for (; is_prefix(*at); ++at) parts.has_short_immediate |= *at == 0x66;
  if ((*at & 0xf0) == 0x40) parts.has_wide_immediate = (*at++ & 8) != 0;
  parts.is_vector = *at == 0xc4 || *at == 0xc5 || *at == 0x62;
  if (*at == 0xc5) {
    parts.map = 1;
    at += 2;
  } else if (*at == 0xc4) {
    parts.map = at[1] & 0x1f;
    at += 3;
  } else if (*at == 0x62) {
    parts.map = at[1] & 7;
    at += 4;
  } else if (*at == 0x0f) {
    parts.map = at[1] == 0x38 ? 2 : at[1] == 0x3a ? 3 : 1;
    at += parts.map == 1 ? 1 : 2;
  }
  parts.opcode = *at;
  parts.rest = at + 1;
  return parts;
}

bool has_modrm(const Parts& parts) {
  const unsigned op = parts.opcode;
  if (parts.is_vector) return !(parts.map == 1 && op == 0x77);
  if (parts.map >= 2) return true;
  if (parts.map == 1) {
    const bool is_bare = (op >= 0x05 && op <= 0x0b) || op == 0x0e || (op >= 0x30 && op <= 0x37) || op == 0x77 ||
                         (op >= 0x80 && op <= 0x8f) || (op >= 0xa0 && op <= 0xa2) || (op >= 0xa8 && op <= 0xaa) ||
                         (op >= 0xc8 && op <= 0xcf);
    return !is_bare;
  }
  if (op < 0x40) return (op & 7) < 4;
  return op == 0x63 || op == 0x69 || op == 0x6b || (op >= 0x80 && op <= 0x8f) || op == 0xc0 || op == 0xc1 ||
         op == 0xc6 || op == 0xc7 || (op >= 0xd0 && op <= 0xd3) || (op >= 0xd8 && op <= 0xdf) || op == 0xf6 ||
         op == 0xf7 || op == 0xfe || op == 0xff;
}

unsigned immediate_of(const Parts& parts) {
  const unsigned op = parts.opcode;
  const unsigned word = parts.has_short_immediate && !parts.has_wide_immediate ? 2 : 4;
  if (parts.map == 3) return 1;
  if (parts.map == 1) {
    const bool has_byte = (op >= 0x70 && op <= 0x73) || op == 0xc2 || (op >= 0xc4 && op <= 0xc6) ||
                          (!parts.is_vector && (op == 0xa4 || op == 0xac || op == 0xba));
    return has_byte ? 1 : !parts.is_vector && op >= 0x80 && op <= 0x8f ? 4 : 0;
  }
  if (parts.map != 0) return 0;
  if (op < 0x40) return (op & 7) == 4 ? 1 : (op & 7) == 5 ? word : 0;
  if (op >= 0xb8 && op <= 0xbf) return parts.has_wide_immediate ? 8 : word;
  if (op >= 0xa0 && op <= 0xa3) return 8;
  if (op == 0xf6 || op == 0xf7) return (*parts.rest >> 3 & 7) > 1 ? 0 : op == 0xf6 ? 1 : word;
  if (op == 0xe8 || op == 0xe9) return 4;
  if (op == 0x68 || op == 0x69 || op == 0x81 || op == 0xa9 || op == 0xc7) return word;
  if (op == 0xc2 || op == 0xca) return 2;
  if (op == 0xc8) return 3;
  const bool has_byte = op == 0x6a || op == 0x6b || (op >= 0x70 && op <= 0x7f) || op == 0x80 || op == 0x83 ||
                        op == 0xa8 || (op >= 0xb0 && op <= 0xb7) || op == 0xc0 || op == 0xc1 || op == 0xc6 ||
                        op == 0xcd || (op >= 0xe0 && op <= 0xe7) || op == 0xeb;
  return has_byte ? 1 : 0;
}

/// The byte that names operands, and the address that follows it.
unsigned length_of_operands(const unsigned char* modrm) {
  const unsigned mod = *modrm >> 6;
  const unsigned rm = *modrm & 7;
  if (mod == 3) return 1;
  const bool has_sib = rm == 4;
  const bool has_no_base = mod == 0 && (has_sib ? (modrm[1] & 7) == 5 : rm == 5);
  return 1 + (has_sib ? 1 : 0) + (mod == 1 ? 1 : mod == 2 || has_no_base ? 4 : 0);
}

bool is_known(const Parts& parts) {
  const unsigned op = parts.opcode;
  if (parts.map > 6 || (parts.is_vector && parts.map == 0)) return false;
  if (parts.map != 0) return true;
  const bool is_invalid = op == 0x06 || op == 0x07 || op == 0x0e || op == 0x16 || op == 0x17 || op == 0x1e ||
                          op == 0x1f || op == 0x27 || op == 0x2f || op == 0x37 || op == 0x3f || op == 0x60 ||
                          op == 0x61 || op == 0x82 || op == 0x9a || op == 0xce || op == 0xd4 || op == 0xd5 ||
                          op == 0xd6 || op == 0xea;
  return !is_invalid;
}

// ---- where they lead ------------------------------------------------------------------------------------------------

/// HIPSIM_THREAD_ENDS of <hip/hip_runtime.h>.
bool is_end_of_thread(const unsigned char* at) {
  constexpr unsigned char marker[] = {0x0f, 0x1f, 0x80, 'h', 'i', 'p', 's'};
  return std::memcmp(at, marker, sizeof marker) == 0;
}

Instruction decode(Address address) {
  const auto* const at = reinterpret_cast<const unsigned char*>(address);
  Instruction decoded;
  decoded.length = length_of(at);
  if (decoded.length == 0) return decoded;
  const Parts parts = take_apart(at);
  const unsigned op = parts.opcode;
  const Address next = address + decoded.length;
  const auto relative = [&](bool is_byte) {
    const auto* const end = reinterpret_cast<const unsigned char*>(next);
    return next + static_cast<Address>(is_byte ? static_cast<std::int64_t>(load<std::int8_t>(end - 1))
                                               : static_cast<std::int64_t>(load<std::int32_t>(end - 4)));
  };
  decoded.kind = Instruction::plain;
  if (is_end_of_thread(at)) {
    decoded.kind = Instruction::end;
  } else if (parts.map == 1 && !parts.is_vector) {
    if (op >= 0x80 && op <= 0x8f) decoded = {Instruction::branch, decoded.length, relative(false)};
    if (op == 0x0b || op == 0xb9 || op == 0xff) decoded.kind = Instruction::end;
  } else if (parts.map == 0) {
    if ((op >= 0x70 && op <= 0x7f) || (op >= 0xe0 && op <= 0xe3))
      decoded = {Instruction::branch, decoded.length, relative(true)};
    if (op == 0xeb || op == 0xe9) decoded = {Instruction::jump, decoded.length, relative(op == 0xeb)};
    if (op == 0xe8) decoded = {Instruction::call, decoded.length, relative(false)};
    if (op == 0xc2 || op == 0xc3 || op == 0xca || op == 0xcb) decoded.kind = Instruction::give_back;
    if (op == 0xcc || op == 0xcf || op == 0xf4) decoded.kind = Instruction::end;
    if (op == 0xff) {
      const unsigned what = *parts.rest >> 3 & 7;
      const bool is_slot = (*parts.rest & 0xc7) == 5;  // relative to the instruction
      if (what == 2 || what == 3) decoded.kind = is_slot ? Instruction::slot_call : Instruction::plain;
      if (what == 4 || what == 5) decoded.kind = is_slot ? Instruction::slot_jump : Instruction::unknown;
      if (is_slot) decoded.target = relative(false);
    }
  }
  return decoded;
}

#else

// Other machines: every answer is `unknown`.
Instruction decode(Address) { return {}; }

#endif

// ---- calls that do not return
// -----------------------------------------------------------------------------------------

/// clang puts a trap after a call that does not return (hipsim's CMake target asks for it), g++ does not: what the code
/// after such a call is belongs to something else. These are the ones a kernel may have.
bool is_name_of_no_return(std::string_view name) {
  constexpr std::string_view names[] = {
      "abort",       "exit",          "_exit",          "__assert_fail",  "__stack_chk_fail",
      "__cxa_throw", "__cxa_rethrow", "_Unwind_Resume", "_ZSt9terminatev"};
  for (const std::string_view known : names)
    if (name == known) return true;
  return name.starts_with("__asan_report_") || (name.starts_with("_ZSt") && name.find("__throw_") != name.npos) ||
         (name.starts_with("__ubsan_handle_") && name.ends_with("_abort"));
}

struct Slot {
  Address address = 0;
  std::string_view name;  ///< of the function it is for
};

/// Looks in one object of the program for what the dynamic linker puts into the slot.
int look_for_slot(dl_phdr_info* info, std::size_t, void* data) {
  Slot& slot = *static_cast<Slot*>(data);
  const ElfW(Dyn)* dynamic = nullptr;
  bool is_here = false;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& header = info->dlpi_phdr[i];
    const Address begin = info->dlpi_addr + header.p_vaddr;
    if (header.p_type == PT_LOAD) is_here |= slot.address >= begin && slot.address < begin + header.p_memsz;
    if (header.p_type == PT_DYNAMIC) dynamic = reinterpret_cast<const ElfW(Dyn)*>(begin);
  }
  if (!is_here || dynamic == nullptr) return 0;
  Address values[DT_NUM] = {};
  for (; dynamic->d_tag != DT_NULL; ++dynamic)
    if (dynamic->d_tag > 0 && dynamic->d_tag < DT_NUM) values[dynamic->d_tag] = dynamic->d_un.d_ptr;
  const auto look_in = [&](Address table, std::size_t size) {
    const auto* const entries = reinterpret_cast<const ElfW(Rela)*>(table);
    for (std::size_t i = 0; table != 0 && i < size / sizeof *entries; ++i) {
      if (info->dlpi_addr + entries[i].r_offset != slot.address) continue;
      const auto* const symbols = reinterpret_cast<const ElfW(Sym)*>(values[DT_SYMTAB]);
      slot.name = reinterpret_cast<const char*>(values[DT_STRTAB]) + symbols[ELF64_R_SYM(entries[i].r_info)].st_name;
    }
  };
  look_in(values[DT_JMPREL], values[DT_PLTRELSZ]);
  look_in(values[DT_RELA], values[DT_RELASZ]);
  return 1;
}

bool is_slot_of_no_return(Address address) {
  Slot slot{address, {}};
  dl_iterate_phdr(look_for_slot, &slot);
  return is_name_of_no_return(slot.name);
}

// ---- the graph ------------------------------------------------------------------------------------------------------

/// Instructions in a row, up to a branch or a call.
struct Row {
  Instruction last;
  Address after = 0;  ///< the last
};

const Row& row_at(Address address) {
  static auto* const rows = new std::unordered_map<Address, Row>;
  const auto [found, is_new] = rows->try_emplace(address);
  Row& row = found->second;
  if (!is_new) return row;
  do {
    row.last = decode(address);
    address += row.last.length;
  } while (row.last.kind == Instruction::plain);
  row.after = address;
  return row;
}

bool does_return(Address function);

/// Where a thread can be after a row.
struct Next {
  Address at[2] = {};
  int count = 0;
};

Next next_of(const Row& row) {
  switch (row.last.kind) {
    case Instruction::branch:
      return {{row.last.target, row.after}, 2};
    case Instruction::jump:
      return {{row.last.target}, 1};
    case Instruction::call:
      return does_return(row.last.target) ? Next{{row.after}, 1} : Next{};
    case Instruction::slot_call:
      return is_slot_of_no_return(row.last.target) ? Next{} : Next{{row.after}, 1};
    case Instruction::plain:
    case Instruction::slot_jump:
    case Instruction::give_back:
    case Instruction::end:
    case Instruction::unknown:
      break;
  }
  return {};
}

/// Visits the row at `from` and all that a thread can come to from there. `visit` answers whether to go on; `may_enter`
/// is asked about each address but `from` before it is visited.
template <class MayEnter, class Visit>
void walk(Address from, MayEnter may_enter, Visit visit) {
  std::unordered_set<Address> seen;
  std::vector<Address> open{from};
  while (!open.empty()) {
    const Row& row = row_at(open.back());
    open.pop_back();
    if (!visit(row)) return;
    const Next next = next_of(row);
    for (int i = 0; i < next.count; ++i)
      if (seen.insert(next.at[i]).second && may_enter(next.at[i])) open.push_back(next.at[i]);
  }
}

/// False for a function that has no way to a return: one that ends the program.
bool does_return(Address function) {
  static auto* const known = new std::unordered_map<Address, bool>;
  // One that calls itself is taken to return while it is looked at.
  const auto [found, is_new] = known->try_emplace(function, true);
  if (!is_new) return found->second;
  // Functions within functions are followed so far: what ends the program in a kernel's sources is not deeper.
  constexpr int max_depth = 3;
  static int depth = 0;
  if (depth == max_depth) {
    known->erase(found);
    return true;
  }
  ++depth;
  bool returns = false;
  const auto anywhere = [](Address) { return true; };
  walk(function, anywhere, [&](const Row& row) {
    const Instruction::Kind kind = row.last.kind;
    returns = kind == Instruction::give_back || kind == Instruction::unknown ||
              (kind == Instruction::slot_jump && !is_slot_of_no_return(row.last.target));
    return !returns;
  });
  --depth;
  return known->insert_or_assign(function, returns).first->second;
}

}  // namespace

namespace {
Answer look_for_way(Address from, Address to, std::span<const Address> without) {
  bool is_there = false;
  bool is_unknown = false;
  const auto may_enter = [&](Address at) {
    is_there |= at == to;
    return std::find(without.begin(), without.end(), at) == without.end();
  };
  walk(from, may_enter, [&](const Row& row) {
    is_unknown |= row.last.kind == Instruction::unknown;
    return !is_there;
  });
  return is_there ? Answer::yes : is_unknown ? Answer::unknown : Answer::no;
}
}  // namespace

Answer reaches(Address from, Address to, std::span<const Address> without) {
  static auto* const known = new std::map<std::vector<Address>, Answer>;
  std::vector<Address> question{from, to};
  question.insert(question.end(), without.begin(), without.end());
  const auto [found, is_new] = known->try_emplace(std::move(question));
  if (is_new) found->second = look_for_way(from, to, without);
  return found->second;
}

#if defined(__x86_64__)
unsigned length_of(const unsigned char* at) {
  const Parts parts = take_apart(at);
  if (!is_known(parts)) return 0;
  const unsigned operands = has_modrm(parts) ? length_of_operands(parts.rest) : 0;
  return static_cast<unsigned>(parts.rest - at) + operands + immediate_of(parts);
}
#else
unsigned length_of(const unsigned char*) { return 0; }
#endif

}  // namespace hipsim::code

#include "runtime.hpp"

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

namespace hipsim {
namespace {

struct Section {
  char* begin = nullptr;
  std::size_t size = 0;
};

/// A file of the program in memory, read only.
class MappedFile {
 public:
  explicit MappedFile(const char* path) {
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return;
    struct stat status {};
    if (fstat(file, &status) == 0 && status.st_size > 0) {
      size_ = static_cast<std::size_t>(status.st_size);
      void* const mapping = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file, 0);
      if (mapping != MAP_FAILED) data_ = static_cast<const char*>(mapping);
    }
    close(file);
  }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile() {
    if (data_ != nullptr) munmap(const_cast<char*>(data_), size_);
  }

  /// `count` objects at `offset`, null when they are not all in the file.
  template <class T>
  const T* at(std::size_t offset, std::size_t count = 1) const {
    if (data_ == nullptr || offset > size_ || count > (size_ - offset) / sizeof(T)) return nullptr;
    return reinterpret_cast<const T*>(data_ + offset);
  }

 private:
  const char* data_ = nullptr;
  std::size_t size_ = 0;
};

using FileHeader = ElfW(Ehdr);
using SectionHeader = ElfW(Shdr);

/// The section that __shared__ names in one object of the program, from the table in its file: a name with a dot has no
/// symbols at its ends, but AddressSanitizer guards what is in it.
Section find_section(const char* path, std::uintptr_t base) {
  const MappedFile file{path};
  const auto* const header = file.at<FileHeader>(0);
  if (header == nullptr || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0) return {};
  const auto* const sections = file.at<SectionHeader>(header->e_shoff, header->e_shnum);
  if (sections == nullptr || header->e_shstrndx >= header->e_shnum) return {};
  const SectionHeader& names = sections[header->e_shstrndx];
  constexpr char wanted[] = "hipsim.shared";
  for (std::size_t i = 0; i < header->e_shnum; ++i) {
    const auto* const name = file.at<char>(names.sh_offset + sections[i].sh_name, sizeof wanted);
    if (name != nullptr && std::memcmp(name, wanted, sizeof wanted) == 0)
      return {reinterpret_cast<char*>(base + sections[i].sh_addr), sections[i].sh_size};
  }
  return {};
}

int visit_object(dl_phdr_info* info, std::size_t, void* data) {
  const bool is_program = info->dlpi_name == nullptr || *info->dlpi_name == '\0';
  const Section found = find_section(is_program ? "/proc/self/exe" : info->dlpi_name, info->dlpi_addr);
  if (found.size > 0) static_cast<std::vector<Section>*>(data)->push_back(found);
  return 0;
}

/// Looked for once: objects that are loaded later keep what their blocks left behind.
const std::vector<Section>& sections() {
  static const std::vector<Section> found = [] {
    std::vector<Section> list;
    dl_iterate_phdr(visit_object, &list);
    return list;
  }();
  return found;
}

}  // namespace

void renew_shared_variables(Random& random) {
  // Copies of begin and size, or each store is thought to change them and no two go together: four times as slow.
  for (const auto [begin, size] : sections()) {
    // Word by word and not with memset: between the variables lie AddressSanitizer's guards, whose bytes nobody reads.
    std::uint64_t word = random.next();
    std::size_t i = 0;
    for (; i + sizeof word <= size; i += sizeof word, word += 0x9e3779b97f4a7c15u)
      __builtin_memcpy(begin + i, &word, sizeof word);
    for (; i < size; ++i) *reinterpret_cast<volatile char*>(begin + i) = static_cast<char>(word);
    watch::forget(begin, size);
  }
}

}  // namespace hipsim

#include "checkpoint/folder_lock.h"

#include <cerrno>
#include <chrono>
#include <csignal>
#include <ctime>
#include <fstream>
#include <iterator>
#include <sstream>
#include <thread>
#include <vector>

#include <pwd.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "files/json_text.h"

namespace metroplex::checkpoint {
namespace {

using files::join_path;
using Json = nlohmann::json;
using Clock = std::chrono::steady_clock;

// The processes of a killed run may need a moment to end.
constexpr std::chrono::seconds kTrialTimeout{5};
constexpr std::chrono::milliseconds kPause{50};

// Returns field 22 of /proc/PID/stat, parsed after the name, which may contain blanks and brackets. 0: no such
// process, or no /proc.
int64_t start_ticks(int64_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const size_t behind_name = text.rfind(')');
  if (behind_name == std::string::npos) return 0;
  std::istringstream fields(text.substr(behind_name + 1));
  std::string field;
  for (int number = 3; number <= 22; ++number) fields >> field;
  return fields ? std::strtoll(field.c_str(), nullptr, 10) : 0;
}

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "?";
}

std::string user_name() {
  passwd entry{};
  passwd* found = nullptr;
  std::vector<char> buffer(16384);
  const int code = ::getpwuid_r(::geteuid(), &entry, buffer.data(), buffer.size(), &found);
  return code == 0 && found != nullptr ? entry.pw_name : std::to_string(::geteuid());
}

std::string time_now() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  char text[64];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S UTC", &utc)};
}

[[noreturn]] void refuse(const std::string& folder, const std::optional<Holder>& holder) {
  const std::string who =
      holder ? base::concat(" (user ", files::printable(holder->user), ", host ", files::printable(holder->host),
                            ", process ", holder->pid, ", since ", files::printable(holder->since), ")")
             : "";
  base::throw_error("checkpoint",
                    base::concat("checkpoint.save = ", folder, " is in use by another run", who,
                                 ": two runs would remove each other's checkpoints. Wait until it ends, stop it, or "
                                 "choose another checkpoint.save"));
}

}  // namespace

Holder this_process() {
  const int64_t pid = ::getpid();
  return {user_name(), host_name(), pid, start_ticks(pid), time_now()};
}

std::string to_text(const Holder& h) {
  const Json json{
      {"user", h.user}, {"host", h.host}, {"pid", h.pid}, {"start_ticks", h.start_ticks}, {"since", h.since}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::optional<Holder> parse_holder(const std::string& text) {
  try {
    const Json json = Json::parse(text);
    return Holder{json.at("user"), json.at("host"), json.at("pid"), json.at("start_ticks"), json.at("since")};
  } catch (const Json::exception&) { return std::nullopt; }
}

bool lives(const Holder& holder, const std::string& host) {
  if (holder.host != host || holder.pid <= 0) return false;
  if (::kill(static_cast<pid_t>(holder.pid), 0) != 0 && errno == ESRCH) return false;
  const int64_t found = start_ticks(holder.pid);
  return found == 0 || holder.start_ticks == 0 || found == holder.start_ticks;
}

void check_unlocked(files::FileSystem& disk, const std::string& folder) {
  const std::string path = join_path(folder, kRunLock);
  if (!disk.exists(path)) return;
  const auto lock = disk.try_lock(path);
  const std::optional<Holder> holder = parse_holder(disk.read(path));
  const Holder me = this_process();
  const bool own = holder && holder->host == me.host && holder->pid == me.pid;
  if (!lock || (holder && !own && lives(*holder, me.host))) refuse(folder, holder);
}

FolderLock::FolderLock(files::FileSystem& disk, const std::string& folder)
    : disk_(disk), folder_(folder), path_(join_path(folder, kRunLock)) {
  made_folder_ = !disk_.is_directory(folder);
  disk_.make_directories(folder);
  const Holder me = this_process();
  for (const auto begin = Clock::now(); !take(me); std::this_thread::sleep_for(kPause)) {
    if (Clock::now() - begin > kTrialTimeout) refuse(folder, parse_holder(disk_.read(path_)));
  }
  const auto file = disk_.create(path_);  // truncates the file in place, so the lock stays on it
  const std::string text = to_text(me);
  file->write(text.data(), text.size());
  file->close();
}

bool FolderLock::take(const Holder& me) {
  if (!lock_) lock_ = disk_.try_lock(path_);
  if (!lock_) return false;
  const std::optional<Holder> holder = parse_holder(disk_.read(path_));
  const bool own = holder && holder->host == me.host && holder->pid == me.pid;
  return !holder || own || !lives(*holder, me.host);
}

FolderLock::~FolderLock() {
  try {
    if (made_folder_ && disk_.list(folder_) == std::vector<std::string>{kRunLock}) {
      disk_.remove_tree(folder_);
    } else {
      disk_.create(path_)->close();  // not removed: otherwise two runs could lock different files of this name
    }
  } catch (const base::Error&) {  // missing or read-only: its content no longer matters
  }
}

}  // namespace metroplex::checkpoint

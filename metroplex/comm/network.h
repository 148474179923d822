// Addresses and sockets of this machine: which interface the control plane uses, and connections between ranks.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace metroplex::comm {

struct Interface {
  std::string name;     // "eth0"
  std::string address;  // numeric
};
// Those that are up, the loopback too; an interface with several addresses gives its first of IPv4, else of IPv6.
std::vector<Interface> network_interfaces();

// The addresses of `names` ("eth0" or "eth0,eth1"). Throws base::Error("config") that names `source` (a key or a
// variable), the name that does not exist, and those that do.
std::vector<std::string> addresses_of(const std::string& names, const std::string& source);

// The address by which this machine reaches `master`: a host whose own name is 127.0.1.1 is known to others by it.
// Where that is the loopback but `others` (there are ranks on other machines), the first address that is not.
std::string address_towards(const std::string& master, bool others);

bool is_loopback(const std::string& host);

// Why the name of `host` leads to no address; empty: it does. A name server may learn of a machine after its ranks
// have started, so it is asked again for `patience`.
std::string why_unknown(const std::string& host, std::chrono::milliseconds patience);

// Gives this process as many open files (RLIMIT_NOFILE) as it may have, and throws base::Error("config") where that
// is less than a rank of `world_size` over gloo opens.
void allow_open_files(int64_t world_size);

// The name that this machine gives itself.
std::string host_name();

// A socket listening at `address` (numeric), and its port.
std::pair<int, uint16_t> listen_at(const std::string& address);
// Connected; -1 with `error` set.
int connect_to(const std::string& address, uint16_t port, std::chrono::milliseconds timeout, std::string& error);
// The numeric address of the other end; empty if there is none.
std::string peer_address(int fd);
// A socket listening on `port` of the first address of `host` that this machine has; on all addresses if it has none
// of them (an address that is translated), or if `others` (ranks on other machines) cannot reach a loopback name.
// Throws base::Error("comm").
int listen_at_name(const std::string& host, uint16_t port, bool others);
// A connection to the first address of `host` that accepts one on `port`; repeated for `timeout`, then -1 with the
// last error.
int connect_by_name(const std::string& host, uint16_t port, std::chrono::milliseconds timeout, std::string& error);
// Small messages leave at once, calls do not block, and the kernel gives a silent machine up after `silence`.
void prepare_socket(int fd, std::chrono::seconds silence);

}  // namespace metroplex::comm

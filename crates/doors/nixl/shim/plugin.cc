// The engine's class, as NIXL wants it. Each function passes on to the C interface; what is decided is decided there.

#include "devmem_nixl.h"
#include "nixl_abi.h"

#include <cstdio>
#include <exception>
#include <memory>

#include <link.h>

namespace {

// Calls, and lets no exception out. An exception here is one of memory that is used up.
template <class Call> nixl_status_t guarded(Call call) noexcept {
    try {
        return static_cast<nixl_status_t>(call());
    } catch (const std::exception &error) {
        std::fprintf(stderr, "devmem-nixl: %s\n", error.what());
    } catch (...) {
        std::fprintf(stderr, "devmem-nixl: an unknown exception\n");
    }
    return NIXL_ERR_BACKEND;
}

devmem_nixl_text text_of(const std::string &text) { return {text.data(), text.size()}; }

// Puts a text into a std::string. An exception must not pass through the C interface, so it becomes a text that is missing.
void put_string(void *to, devmem_nixl_text text) noexcept {
    try {
        static_cast<std::string *>(to)->assign(text.bytes, text.len);
    } catch (...) {
    }
}

nixl_status_t string_of(int status, const std::string &text) {
    return status == NIXL_SUCCESS && text.empty() ? NIXL_ERR_BACKEND : static_cast<nixl_status_t>(status);
}

// A region: registered here, or of another agent, or the far side of one of this agent.
class Memory final : public nixlBackendMD {
public:
    enum class Kind { Registered, Loaded };

    Memory(Kind kind, uint64_t number) : nixlBackendMD(kind == Kind::Registered), kind(kind), number(number) {}

    const Kind kind;
    const uint64_t number;
};

class Request final : public nixlBackendReqH {
public:
    explicit Request(devmem_nixl_transfer *transfer) : transfer(transfer) {}

    devmem_nixl_transfer *const transfer;
};

std::vector<devmem_nixl_range> ranges_of(const nixl_meta_dlist_t &list) {
    std::vector<devmem_nixl_range> ranges;
    ranges.reserve(list.all().size());
    for (const nixlMetaDesc &desc : list.all()) {
        const auto *memory = static_cast<const Memory *>(desc.metadataP);
        ranges.push_back({desc.addr, desc.len, memory ? memory->number : 0});
    }
    return ranges;
}

class Engine final : public nixlBackendEngine {
public:
    explicit Engine(const nixlBackendInitParams &params) : nixlBackendEngine(params) {
        std::vector<devmem_nixl_parameter_pair> pairs;
        for (const auto &[key, value] : *params.customParams) {
            pairs.push_back({text_of(key), text_of(value)});
        }
        initErr = devmem_nixl_open(text_of(params.localAgent), pairs.data(), pairs.size(), params.enableProgTh, &core_) != NIXL_SUCCESS;
    }

    ~Engine() override { devmem_nixl_close(core_); }

    bool supportsRemote() const override { return true; }
    bool supportsLocal() const override { return true; }
    bool supportsNotif() const override { return true; }
    nixl_mem_list_t getSupportedMems() const override {
        nixl_mem_list_t kinds;
        if (devmem_nixl_takes_host(core_)) {
            kinds.push_back(DRAM_SEG);
        }
        if (devmem_nixl_has_gpu()) {
            kinds.push_back(VRAM_SEG);
        }
        return kinds;
    }

    nixl_status_t registerMem(const nixlBlobDesc &range, const nixl_mem_t &kind, nixlBackendMD *&out) override {
        return guarded([&] {
            uint64_t number = 0;
            int status = NIXL_ERR_NOT_SUPPORTED;
            if (kind == DRAM_SEG) {
                status = devmem_nixl_register(core_, range.addr, range.len, &number);
            } else if (kind == VRAM_SEG) {
                status = devmem_nixl_register_gpu(core_, range.addr, range.len, range.devId, &number);
            }
            if (status == NIXL_SUCCESS) {
                out = new Memory(Memory::Kind::Registered, number);
            }
            return status;
        });
    }

    nixl_status_t deregisterMem(nixlBackendMD *memory) override {
        return guarded([&] {
            // libnixl forgets it whatever is returned.
            std::unique_ptr<Memory> it(static_cast<Memory *>(memory));
            return devmem_nixl_deregister(core_, it->number);
        });
    }

    nixl_status_t connect(const std::string &peer) override {
        return guarded([&] { return devmem_nixl_connect(core_, text_of(peer)); });
    }

    nixl_status_t disconnect(const std::string &peer) override {
        return guarded([&] { return devmem_nixl_disconnect(core_, text_of(peer)); });
    }

    nixl_status_t unloadMD(nixlBackendMD *memory) override {
        return guarded([&] {
            std::unique_ptr<Memory> it(static_cast<Memory *>(memory));
            return devmem_nixl_unload_region(core_, it->number);
        });
    }

    nixl_status_t prepXfer(const nixl_xfer_op_t &op, const nixl_meta_dlist_t &local, const nixl_meta_dlist_t &remote,
                           const std::string &peer, nixlBackendReqH *&handle, const nixl_opt_b_args_t *) const override {
        return guarded([&] {
            const auto locals = ranges_of(local), remotes = ranges_of(remote);
            if (locals.size() != remotes.size()) {
                return static_cast<int>(NIXL_ERR_INVALID_PARAM);
            }
            devmem_nixl_transfer *transfer = nullptr;
            const int status = devmem_nixl_prepare(core_, op == NIXL_WRITE, text_of(peer), locals.data(), remotes.data(), locals.size(),
                                                   &transfer);
            if (status == NIXL_SUCCESS) {
                handle = new Request(transfer);
            }
            return status;
        });
    }

    nixl_status_t postXfer(const nixl_xfer_op_t &, const nixl_meta_dlist_t &, const nixl_meta_dlist_t &, const std::string &,
                           nixlBackendReqH *&handle, const nixl_opt_b_args_t *args) const override {
        return guarded([&] {
            const bool has_message = args && args->hasNotif;
            const devmem_nixl_text message = has_message ? text_of(args->notifMsg) : devmem_nixl_text{};
            return devmem_nixl_post(core_, transfer_of(handle), has_message ? &message : nullptr);
        });
    }

    nixl_status_t checkXfer(nixlBackendReqH *handle) const override {
        return guarded([&] { return devmem_nixl_check(core_, transfer_of(handle)); });
    }

    nixl_status_t releaseReqH(nixlBackendReqH *handle) const override {
        return guarded([&] {
            std::unique_ptr<Request> it(static_cast<Request *>(handle));
            return it ? devmem_nixl_release(core_, it->transfer) : static_cast<int>(NIXL_SUCCESS);
        });
    }

    nixl_status_t getPublicData(const nixlBackendMD *memory, std::string &out) const override {
        return guarded([&] {
            const auto *it = static_cast<const Memory *>(memory);
            return string_of(devmem_nixl_describe(core_, it->number, put_string, &out), out);
        });
    }

    nixl_status_t getConnInfo(std::string &out) const override {
        return guarded([&] { return string_of(devmem_nixl_info(core_, put_string, &out), out); });
    }

    nixl_status_t loadRemoteConnInfo(const std::string &peer, const std::string &info) override {
        return guarded([&] { return devmem_nixl_load_agent(core_, text_of(peer), text_of(info)); });
    }

    nixl_status_t loadRemoteMD(const nixlBlobDesc &range, const nixl_mem_t &, const std::string &peer, nixlBackendMD *&out) override {
        return guarded([&] {
            uint64_t number = 0;
            const int status = devmem_nixl_load_region(core_, text_of(peer), text_of(range.metaInfo), &number);
            return loaded(status, number, out);
        });
    }

    nixl_status_t loadLocalMD(nixlBackendMD *memory, nixlBackendMD *&out) override {
        return guarded([&] {
            uint64_t number = 0;
            const int status = devmem_nixl_load_own(core_, static_cast<Memory *>(memory)->number, &number);
            return loaded(status, number, out);
        });
    }

    nixl_status_t getNotifs(notif_list_t &out) override {
        return guarded([&] { return devmem_nixl_notifications(core_, add_notification, &out); });
    }

    nixl_status_t genNotif(const std::string &peer, const std::string &message) const override {
        return guarded([&] { return devmem_nixl_notify(core_, text_of(peer), text_of(message)); });
    }

private:
    static devmem_nixl_transfer *transfer_of(nixlBackendReqH *handle) {
        return handle ? static_cast<Request *>(handle)->transfer : nullptr;
    }

    static int loaded(int status, uint64_t number, nixlBackendMD *&out) {
        if (status == NIXL_SUCCESS) {
            out = new Memory(Memory::Kind::Loaded, number);
        }
        return status;
    }

    static void add_notification(void *to, devmem_nixl_text from, devmem_nixl_text message) noexcept {
        try {
            static_cast<notif_list_t *>(to)->emplace_back(std::string(from.bytes, from.len), std::string(message.bytes, message.len));
        } catch (...) {
            std::fprintf(stderr, "devmem-nixl: no memory for a notification of %zu bytes, which is lost\n", message.len);
        }
    }

    devmem_nixl_engine *core_ = nullptr;
};

// Keeps the path of libnixl, and ends the search.
int keep_libnixl(dl_phdr_info *info, size_t, void *to) noexcept {
    try {
        const std::string path = info->dlpi_name;
        const size_t slash = path.rfind('/');
        if (path.compare(slash == std::string::npos ? 0 : slash + 1, 10, "libnixl.so") != 0) {
            return 0;
        }
        *static_cast<std::string *>(to) = path;
    } catch (...) {
    }
    return 1;
}

nixlBackendEngine *create_engine(const nixlBackendInitParams *params) {
    Engine *engine = nullptr;
    guarded([&] {
        std::string libnixl;
        dl_iterate_phdr(keep_libnixl, &libnixl);
        const int fits = devmem_nixl_check_abi(text_of(libnixl), nixl_vtable_bytes);
        if (fits == NIXL_SUCCESS) {
            engine = new Engine(*params);
        }
        return fits;
    });
    return engine;
}

void destroy_engine(nixlBackendEngine *engine) { delete engine; }

const char *plugin_name() { return "DEVMEM"; }
const char *plugin_version() { return DEVMEM_NIXL_VERSION; }

nixl_b_params_t backend_options() {
    nixl_b_params_t options;
    devmem_nixl_parameter_pair pair;
    for (size_t index = 0; devmem_nixl_parameter(index, &pair) == 0; ++index) {
        options.emplace(std::string(pair.key.bytes, pair.key.len), std::string(pair.value.bytes, pair.value.len));
    }
    return options;
}

nixl_mem_list_t backend_mems() { return {DRAM_SEG, VRAM_SEG}; }

} // namespace

extern "C" nixlBackendPlugin *devmem_nixl_plugin_record() {
    static nixlBackendPlugin record = {
        1, create_engine, destroy_engine, plugin_name, plugin_version, backend_options, backend_mems,
    };
    return &record;
}

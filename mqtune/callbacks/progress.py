from mqtune.callback import Callback
class Progress(Callback): pass
